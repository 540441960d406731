"""The grounded chain: a drop-in for the stuff-documents chain that hands the documents to the drafter too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document
from langchain_core.output_parsers import BaseOutputParser, StrOutputParser
from langchain_core.prompts import BasePromptTemplate, PromptTemplate, aformat_document, format_document
from langchain_core.runnables import Runnable, RunnableLambda

from groundspeed.errors import InputError
from groundspeed.integrations.langchain.documents import GroundedPromptValue

if TYPE_CHECKING:
    from langchain_core.language_models import LanguageModelLike

__all__ = ["create_grounded_chain"]


def create_grounded_chain(
    llm: LanguageModelLike,
    prompt: BasePromptTemplate[Any],
    *,
    output_parser: BaseOutputParser[Any] | None = None,
    document_prompt: BasePromptTemplate[str] | None = None,
    document_separator: str = "\n\n",
    document_variable_name: str = "context",
) -> Runnable[dict[str, Any], Any]:
    """Make a chain that puts documents into the prompt and drafts the answer from them.

    Arguments and input are those of LangChain's ``create_stuff_documents_chain``. The documents of each input
    go to the model with that input, in ``batch`` and in an event loop as well.

    Args:
        llm: A ``ChatGroundspeed`` or ``GroundspeedLLM``, perhaps bound to something or with fallbacks; a
            model of another kind gets the prompt alone.
        prompt: With a variable for the documents.
        output_parser: By default one that gives the text.
        document_prompt: For each document; by default its text alone.
        document_separator: Between documents.
        document_variable_name: The variable of the documents, in the prompt and in the input.

    Raises:
        InputError: The prompt has no such variable.
    """
    name = document_variable_name
    if name not in prompt.input_variables:
        raise InputError(
            f"the prompt has the variables {', '.join(prompt.input_variables) or 'none'}; it must have "
            f"{name!r}, or give document_variable_name"
        )
    each = document_prompt or PromptTemplate.from_template("{page_content}")
    parser = output_parser or StrOutputParser()

    def grounded(inputs: Mapping[str, Any]) -> GroundedPromptValue:
        documents = _documents(inputs, name)
        text = document_separator.join(format_document(document, each) for document in documents)
        return GroundedPromptValue(prompt=prompt.invoke({**inputs, name: text}), documents=documents)

    async def agrounded(inputs: Mapping[str, Any]) -> GroundedPromptValue:
        documents = _documents(inputs, name)
        text = document_separator.join([await aformat_document(document, each) for document in documents])
        return GroundedPromptValue(prompt=await prompt.ainvoke({**inputs, name: text}), documents=documents)

    formatting = RunnableLambda(grounded, agrounded).with_config(run_name="format_inputs")
    return (formatting | llm | parser).with_config(run_name="grounded_chain")


def _documents(inputs: Mapping[str, Any], name: str) -> list[Document]:
    documents = inputs.get(name)
    if not isinstance(documents, list | tuple) or not all(isinstance(one, Document) for one in documents):
        raise InputError(
            f"the chain's input {name!r} is a {type(documents).__name__}; give a list of documents, as a "
            "retriever does"
        )
    return list(documents)
