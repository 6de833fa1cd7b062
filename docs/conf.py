"""How the documentation is built: ``python -m sphinx -W -b html docs OUT``."""

from importlib.metadata import version as version_of

project = "accy_async"
author = "the accy_async authors"
release = version_of("accy-async")
version = ".".join(release.split(".")[:2])

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# Docstrings name our own classes in single backticks.
default_role = "code"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Beyond Google's own sections, ours say what a cancelled call has done.
napoleon_custom_sections = ["Cancellation", "Source"]

html_theme = "furo"
html_title = f"accy_async {release}"
