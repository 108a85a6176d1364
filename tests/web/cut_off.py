"""Finds cut-off text of cells and buttons, cut-off captions, and tables that need not scroll.

Each objection shows the markup of the page.
"""

from playwright.sync_api import Page

WIDE_FROM_PX = 1_000
COLUMNS_ON_A_PHONE = 3
"""With more columns, a table is as wide as it has to be, and scrolls."""

_CUT_OFF = r"""([wideFrom, columns]) => {
  const told = (what, all) => all.map(
    (each) => `${what}: ${each.outerHTML.replace(/\s+/g, " ").slice(0, 160)}`
  );
  const shown = (selector) => [...document.querySelectorAll(selector)].filter(
    (each) => each.clientWidth && !each.closest(".visually-hidden")
      && each.checkVisibility({ visibilityProperty: true })
  );
  const isWider = (each) => each.scrollWidth > each.clientWidth;
  const hides = (each) => {
    const { overflowX, textOverflow } = getComputedStyle(each);
    return /hidden|clip/.test(overflowX) && textOverflow !== "ellipsis";
  };
  const hasRoom = (table) => innerWidth >= wideFrom
    || table.querySelectorAll("thead th").length <= columns;
  const frameOf = (table) => table.closest(".scroll, .card.flush");
  const tables = shown("table").filter(frameOf);
  return [
    ...told("does not hold its text", shown("td, th, button, .button").filter(isWider)),
    ...told("hides text", shown("main *").filter((each) => hides(each) && isWider(each))),
    ...told("has room and scrolls", tables.filter(
      (each) => hasRoom(each) && isWider(frameOf(each))
    )),
    ...told("goes on out of sight", shown("caption").filter(
      (each) => each.clientWidth > each.closest("table").parentElement.clientWidth
    )),
  ];
}"""


def cut_off(page: Page) -> list[str]:
    found: list[str] = page.evaluate(_CUT_OFF, [WIDE_FROM_PX, COLUMNS_ON_A_PHONE])
    return found
