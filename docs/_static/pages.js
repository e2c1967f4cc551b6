// What a screen reader and a keyboard need beyond the theme: levels of headings, names of landmarks, lists of
// parameters, and focus for what scrolls sideways.
function makeAccessible() {
  document.querySelectorAll("[role=heading]:not([aria-level])").forEach((heading) => heading.setAttribute("aria-level", "2"));
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  document.querySelectorAll("dt.sig dl").forEach((parameters) => {  // Sphinx writes them as definitions without terms
    parameters.setAttribute("role", "list");
    [...parameters.children].forEach((parameter) => parameter.setAttribute("role", "listitem"));
  });
  document.querySelectorAll("pre, .table-wrapper").forEach((box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  });
}
addEventListener("load", makeAccessible);
addEventListener("resize", makeAccessible);
