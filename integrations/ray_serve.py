"""The server in replicas of Ray Serve: ``serve run groundspeed.integrations.ray_serve:groundspeed_app``."""

# No postponed annotations: Ray Serve looks for the class of the builder's parameter to check arguments by it.

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from groundspeed.errors import GroundspeedError, InputError, MissingDependencyError

__all__ = ["ReplicaOptions", "groundspeed_app"]


class ReplicaOptions(BaseModel):
    """What a deployment is made of; apart from the last three, named and meant as in ``groundspeed serve``.

    Files and folders are read by the replicas: every node needs them under the same path. Stores are only
    read, and whatever a writer does to them is seen by the next request.

    Attributes:
        num_replicas: How many; ``auto`` leaves it to Ray Serve, by load.
        drain: Seconds for which running answers may go on when a replica is stopped.
        deployment: Further options of ``serve.deployment``, such as ``ray_actor_options``,
            ``autoscaling_config`` or ``health_check_period_s``. They go before what is set here.
    """

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    draft_model: str | None = None
    datastore: Path | None = None
    store: Path | None = None
    embedding_model: str | None = None
    name: str | None = None
    api_keys: Path | None = None
    cors_origins: tuple[str, ...] = ()
    max_active: int = Field(16, ge=1)
    max_waiting: int = Field(64, ge=0)
    max_prompt_tokens: int | None = Field(None, ge=1)
    max_tokens: int = Field(1024, ge=1)
    timeout: float = Field(600, gt=0)
    log_prompts: bool = False
    num_replicas: int | Literal["auto"] = 1
    drain: float = Field(60, ge=0)
    deployment: dict[str, Any] = Field(default_factory=dict)


class _Replica:
    """An engine and the application around it, in a process of its own.

    The application closes the engine when Ray Serve shuts it down, which waits for running answers before.
    """

    def __init__(self, options: ReplicaOptions) -> None:
        from groundspeed.integrations.server.app import create_app
        from groundspeed.integrations.server.keys import Keys
        from groundspeed.integrations.server.run import write_log
        from groundspeed.integrations.server.settings import Settings
        from groundspeed.verify.engine import Engine

        write_log(log_prompts=options.log_prompts)
        self._engine = Engine.from_pretrained(
            options.model,
            device=options.device,
            dtype=options.dtype,
            datastore=options.datastore,
            draft_model=options.draft_model,
            most_active=options.max_active,
        )
        settings = Settings(
            model=options.name,
            store=options.store,
            read_only=True,  # replicas would only wait for one another's locks
            embedding_model=options.embedding_model,
            keys=Keys.load(options.api_keys),
            cors_origins=options.cors_origins,
            prompt_tokens=options.max_prompt_tokens,
            answer_tokens=options.max_tokens,
            waiting=options.max_waiting,
            request_seconds=options.timeout,
            log_prompts=options.log_prompts,
        )
        self._application = create_app(self._engine, settings)

    def __serve_build_asgi_app__(self) -> Any:
        return self._application

    def check_health(self) -> None:
        """Have the replica replaced when its engine answers no more."""
        if fault := self._engine.fault:
            raise GroundspeedError(f"{fault}; this replica has to be replaced")


def groundspeed_app(options: ReplicaOptions) -> Any:
    """A Ray Serve application: as many servers as there are replicas, behind one address.

    ``serve.run(groundspeed_app(ReplicaOptions(store="/shared/store", num_replicas=2)))`` in Python, ``serve
    run groundspeed.integrations.ray_serve:groundspeed_app store=/shared/store num_replicas=2`` in a shell, or
    the same under ``args`` of a configuration file. A replica takes as many requests as its engine answers at
    once; further ones wait in front of all of them, and go to the one that is free first.

    Args:
        options: What it is made of.

    Returns:
        An ``Application``.

    Raises:
        MissingDependencyError: Ray Serve or the server's own libraries are not installed.
        InputError: ``serve.deployment`` does not take an option.
    """
    try:
        import fastapi  # noqa: F401
        from ray import serve
    except ImportError as error:
        raise MissingDependencyError(
            f"replicas need {error.name}, which is not installed: run `pip install 'groundspeed[ray,serve]'` "
            "here and on every node"
        ) from error
    settings = {
        "name": "groundspeed",
        "num_replicas": options.num_replicas,
        "max_ongoing_requests": options.max_active,
        "max_queued_requests": options.max_waiting,
        "graceful_shutdown_timeout_s": options.drain,
        **options.deployment,
    }
    try:
        deployment = serve.deployment(**settings)(serve.ingress()(_Replica))
    except (TypeError, ValueError) as error:
        raise InputError(f"Ray Serve takes no such deployment: {error}") from error
    return deployment.bind(options)
