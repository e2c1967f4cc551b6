"""How Sphinx builds the documentation: `nox -s docs`.

Every tutorial runs while it is built, but for those that need a GPU: `record_outputs.py` recorded what they print. What
is said of speed comes from the files in ``benchmarks/results``, by way of `measurements.py` and `readme_numbers.py`.
"""

import html
import json
import os
import sys
from pathlib import Path

from docutils import nodes
from sphinx.errors import ExtensionError

import xlakernel.core
import xlakernel.cuda
import xlakernel.numba
import xlakernel.sparse
import xlakernel.warp

sys.path.insert(0, str(Path(__file__).parent))
import gallery
import measurements
import readme_numbers
import record_outputs

project = "xlakernel"
copyright = "xlakernel developers"
author = "xlakernel developers"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "examples"]

# Names of other projects are links where the pages are published. Elsewhere the build needs no network.
if os.environ.get("READTHEDOCS") == "True":
    extensions.append("sphinx.ext.intersphinx")
intersphinx_mapping = {
    "python": ("https://docs.python.org/3/", None),
    "numpy": ("https://numpy.org/doc/stable/", None),
    "scipy": ("https://docs.scipy.org/doc/scipy/", None),
    "jax": ("https://docs.jax.dev/en/latest/", None),
    "numba": ("https://numba.readthedocs.io/en/stable/", None),
    "warp": ("https://nvidia.github.io/warp/", None),
}

html_theme = "furo"
html_title = "xlakernel"
html_theme_options = {
    "source_repository": "https://github.com/xlakernel/xlakernel",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_selector = (
    "div.highlight-ipython3 pre, div.highlight-python pre, div.highlight-default pre, div.highlight-sh pre"
)
html_static_path = ["_static"]
html_logo = html_favicon = "_static/logo.svg"
html_css_files = ["pages.css"]
html_js_files = ["pages.js"]

# Each package has a version of its own, so there is no one version of this documentation.
myst_enable_extensions = ["substitution"]
myst_heading_anchors = 3
myst_substitutions = {
    "core_version": xlakernel.core.__version__,
    "numba_version": xlakernel.numba.__version__,
    "cuda_version": xlakernel.cuda.__version__,
    "warp_version": xlakernel.warp.__version__,
    "sparse_version": xlakernel.sparse.__version__,
}

# A page that fails, or writes a warning, fails the build. The examples are for the CPU, also where there is a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_output_stderr = "warn"
nb_merge_streams = True

# Pictures are SVG, for light and dark pages.
os.environ["MATPLOTLIBRC"] = str(Path(__file__).with_name("matplotlibrc"))


def draw_svg(app):
    """Let notebooks draw SVG, by a profile of IPython in the folder of the build."""
    profile = Path(app.doctreedir, "ipython", "profile_default")
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("c.InlineBackend.figure_formats = {'svg'}\n", "utf-8")
    os.environ["IPYTHONDIR"] = str(profile.parent)


RECORDED = {"tutorials/numba-cuda", "cookbook/libraries"}


def show_recorded_outputs(app, docname, source):
    """Put the recorded outputs into a page, or fail if they are not those of its cells."""
    if docname not in RECORDED:
        return
    page = Path(app.srcdir, f"{docname}.md")
    outputs = record_outputs.outputs_beside(page)
    app.env.note_dependency(outputs)
    try:
        source[0] = record_outputs.show(source[0], json.loads(outputs.read_text("utf-8")), f"{docname}.md")
    except (OSError, ValueError) as error:
        raise ExtensionError(f"The outputs of {docname} cannot be shown: {error}") from error


def show_measurements(app, docname, source):
    """Put the tables into the page of what was measured."""
    if docname != "performance":
        return
    results = measurements.read()
    for result in results:
        app.env.note_dependency(result.path)
    try:
        source[0] = measurements.show(source[0], results, Path(app.srcdir, f"{docname}.md"))
    except measurements.ResultsError as error:
        raise ExtensionError(str(error)) from error


def check_errors(app, doctree):
    """Refuse a page with a cell that should raise an error and raises none."""
    for cell in doctree.findall(nodes.container):
        is_expected = "tag_raises-exception" in cell["classes"]
        if is_expected and not any("traceback" in block["classes"] for block in cell.findall(nodes.literal_block)):
            raise ExtensionError(f"{app.env.docname}: this cell raises no error:\n{cell.astext()}")


def check_readme(app):
    """Refuse to build where the README has other numbers than those that were measured."""
    try:
        readme_numbers.check()
    except measurements.ResultsError as error:
        raise ExtensionError(str(error)) from error


def first_paragraph(doctree):
    """Return the text of a page's first paragraph."""
    paragraph = next(iter(doctree.findall(nodes.paragraph)), None)
    return "" if paragraph is None else " ".join(paragraph.astext().split())


def describe_page(app, pagename, templatename, context, doctree):
    """Give a page its first paragraph as the description that search engines and links to it show."""
    if doctree is not None and (text := first_paragraph(doctree)):
        card = {"og:type": "article", "og:site_name": project, "og:title": context["title"], "og:description": text}
        tags = [f'<meta name="description" content="{html.escape(text)}" />']
        tags += [f'<meta property="{name}" content="{html.escape(value)}" />' for name, value in card.items()]
        context["metatags"] = "\n".join([context.get("metatags", ""), *tags])


def list_pages(app, error):
    """Write ``llms.txt``, the pages with their first paragraphs, for language models: https://llmstxt.org."""
    if error is None and app.builder.format == "html":
        pages = [page for page in sorted(app.env.found_docs) if page != app.config.root_doc]
        about = first_paragraph(app.env.get_doctree(app.config.root_doc))
        lines = [
            f"- [{app.env.titles[page].astext()}]({app.builder.get_target_uri(page)}): "
            f"{first_paragraph(app.env.get_doctree(page))}"
            for page in pages
        ]
        text = "\n".join([f"# {project}", "", f"> {about}", "", "## Pages", "", *lines, ""])
        Path(app.outdir, "llms.txt").write_text(text, "utf-8")


# `sphinx -j` hands pages to its processes in rows of ten or so, in the order of their names: left so, one process would
# get most tutorials, and would come to the page that takes longest when the others are done.
SLOWEST = "tutorials/spiking-networks"


def spread_pages(app, env, docnames):
    """Let one process begin with the slowest page, which the pages without code follow, and others with the rest."""

    def order(docname):
        runs = docname not in RECORDED and "{code-cell}" in Path(env.doc2path(docname)).read_text("utf-8")
        return docname != SLOWEST, runs, docname

    docnames.sort(key=order)


def setup(app):
    app.connect("builder-inited", check_readme)
    app.connect("builder-inited", draw_svg)
    app.connect("source-read", show_recorded_outputs)
    app.connect("source-read", show_measurements)
    app.connect("doctree-read", check_errors)
    app.connect("doctree-resolved", gallery.show)
    app.connect("env-before-read-docs", spread_pages)
    app.connect("html-page-context", describe_page)
    app.connect("build-finished", list_pages)


default_role = "py:obj"  # the docstrings write `name` for what can be linked
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
