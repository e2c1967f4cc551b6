"""The pictures of a page's recipes: each that its table links to, with the first picture of the linked section."""

from docutils import nodes

PAGE = "cookbook/index"


def show(app, doctree, docname):
    """Insert the pictures above the table of `PAGE`."""
    if docname != PAGE:
        return
    (table,) = doctree.findall(nodes.table)
    gallery = nodes.container(classes=["gallery"])
    for row in table.findall(nodes.row):
        for link in row[0].findall(nodes.reference):
            if picture := find_picture(app, link["refuri"]):
                picture["alt"] = f"{link.astext()}: picture of the result"
                item = nodes.reference("", "", picture, refuri=link["refuri"], internal=True)
                gallery += nodes.paragraph("", "", item, nodes.inline("", link.astext()))
    table.parent.insert(table.parent.index(table), gallery)


def find_picture(app, uri):
    """Return a copy of the first picture of a section, given by a URI relative to `PAGE`; None without one."""
    path, _, anchor = uri.partition("#")
    page = next(name for name in app.env.found_docs if app.builder.get_relative_uri(PAGE, name) == path)
    for section in app.env.get_doctree(page).findall(nodes.section):
        if anchor in section["ids"]:
            for image in section.findall(nodes.image):
                if image["uri"].endswith(".svg"):
                    return nodes.image("", uri=image["uri"], candidates=image["candidates"])
    return None
