"""The page, as a browser takes it: ``index.html``, a style sheet and scripts, without a build step."""
