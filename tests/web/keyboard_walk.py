"""Walks through a page with the Tab key: the stops, their order, and whether each is visible.

Each objection shows the markup of the page.
"""

from playwright.sync_api import Page

WALKING = r"""
  const told = (what, all) => all.map(
    (each) => `${what}: ${each.outerHTML.replace(/\s+/g, " ").slice(0, 120)}`
  );

  const USED = "a[href], button, input, select, textarea, summary";
  window.stopsIn = (root) => [...root.querySelectorAll(`${USED}, [tabindex]`)].filter((each) =>
    (each.matches(USED) || each.tabIndex >= 0) && !each.disabled
      && each.checkVisibility({ visibilityProperty: true })
  );

  let walked = [];
  document.addEventListener("focusin", ({ target }) => {
    const { outlineStyle, outlineWidth } = getComputedStyle(target);
    const [box] = target.getClientRects();
    const seen = box && document.elementFromPoint(
      (Math.max(box.left, 0) + Math.min(box.right, innerWidth)) / 2,
      (Math.max(box.top, 0) + Math.min(box.bottom, innerHeight)) / 2,
    );
    walked.push({
      stop: target,
      isMarked: outlineStyle !== "none" && parseFloat(outlineWidth) >= 2,
      isSeen: Boolean(seen) && (target.contains(seen) || seen.contains(target)),
    });
  });

  window.beginToWalk = () => { walked = []; };

  const metIn = (stops) => walked.filter(({ stop }) => stops.includes(stop));
  window.hasBegunAnew = (root) => {
    const stops = stopsIn(root);
    return metIn(stops).length > stops.length;
  };

  window.objectionsIn = (root) => {
    const stops = stopsIn(root), met = metIn(stops);
    const at = met.map(({ stop }) => stops.indexOf(stop));
    const astray = met.filter((_, i) => i > 0 && at[i] !== (at[i - 1] + 1) % stops.length);
    const objects = (each) => each.map(({ stop }) => stop);
    return [
      ...told("is not reached", stops.filter((_, index) => !at.includes(index))),
      ...told("comes out of order", objects(astray)),
      ...told("is not marked", objects(met.filter((each) => !each.isMarked))),
      ...told("is out of sight", objects(met.filter((each) => !each.isSeen))),
      ...(met.length > stops.length ? [] : ["it does not begin anew"]),
    ];
  };

  // Some browsers stop at what scrolls by themselves, and not all do.
  window.unreachableIn = (root) => told("scrolls, and not by keys",
    [...root.querySelectorAll("*")].filter((each) => {
      const { overflowX, overflowY } = getComputedStyle(each);
      const isWide = /auto|scroll/.test(overflowX) && each.scrollWidth > each.clientWidth;
      const isTall = /auto|scroll/.test(overflowY) && each.scrollHeight > each.clientHeight;
      return (isWide || isTall) && each.tabIndex < 0 && !stopsIn(each).length
        && each.checkVisibility();
    })
  );
"""
"""A script to install before the page loads."""

WITHIN_MAX = 30
"""Date fields have inner stops; scrolling elements and the browser window may be stops too."""


def walk(page: Page, within: str = "html") -> list[str]:
    """Walks around once and returns the objections."""
    root = f"document.querySelector('{within}')"
    page.evaluate("beginToWalk()")
    for _ in range(page.evaluate(f"stopsIn({root}).length")):
        page.keyboard.press("Tab")
    for _ in range(WITHIN_MAX):
        page.keyboard.press("Tab")
        if page.evaluate(f"hasBegunAnew({root})"):
            break
    found: list[str] = page.evaluate(f"objectionsIn({root})")
    return found


def unreachable(page: Page) -> list[str]:
    """Returns the elements that only a pointer can scroll."""
    found: list[str] = page.evaluate("unreachableIn(document)")
    return found
