"""The table of the dashboard's addresses, and the pages that links reach from the first ones."""

import html
import re
from urllib.parse import urljoin, urlsplit

from django.urls import Resolver404, URLPattern, URLResolver, resolve
from playwright.sync_api import APIRequestContext

PAGES = (
    "act",
    "alerts",
    "checkpoint",
    "checkpoints",
    "compare-savepoints",
    "event-log",
    "fleet",
    "game-day",
    "game-days",
    "guarantee",
    "incident",
    "incidents",
    "lab",
    "lineage",
    "logs",
    "password",
    "pipeline",
    "pipeline-game-days",
    "pipeline-labels",
    "pipeline-metrics",
    "pipeline-planner",
    "recovery",
    "savepoint",
    "savepoint-holds",
    "savepoint-state",
    "savepoints",
    "saved-views",
    "settings",
    "settings-action",
    "start-game-day",
    "start-lab",
    "submit",
    "remove-watched-query",
    "watch-query",
    "query-savepoint",
    "query-state",
    "query-work",
    "move-query",
    "rewind-query",
    "take-query-savepoint",
    "ask-flink-job",
    "flink-checkpoint",
    "flink-cluster",
    "flink-job",
    "flink-points",
    "remove-flink-cluster",
    "watch-flink",
    "watched-batch",
    "watched-query",
    "watched-query-limits",
)
FACTOR = "asks for the password first; test_second_factor_in_browser"
NO_PAGES = {
    "account_login": "the sign-in under the name that allauth looks for",
    "account_reauthenticate": FACTOR,
    "mfa_activate_totp": FACTOR,
    "mfa_add_webauthn": FACTOR,
    "mfa_authenticate": "a step of the sign-in; test_second_factor_in_browser",
    "mfa_deactivate_totp": FACTOR,
    "mfa_generate_recovery_codes": FACTOR,
    "mfa_index": "a page of the person; test_second_factor_in_browser",
    "mfa_reauthenticate": FACTOR,
    "mfa_reauthenticate_webauthn": FACTOR,
    "mfa_remove_webauthn": FACTOR,
    "mfa_view_recovery_codes": FACTOR,
    "end-own-session": "is posted",
    "openid_connect_callback": "redirects; test_company_sign_in",
    "openid_connect_login": "redirects; test_company_sign_in",
    "documentation": "built by MkDocs; test_documentation_in_browser",
    "documentation-page": "built by MkDocs; test_documentation_in_browser",
    "login": "redirects signed-in people; test_the_sign_in_page_is_accessible_and_logs_nothing",
    "logout": "is posted",
    "events": "the stream",
    "change-view": "is posted",
    "guarantee-audit": "is posted",
    "save-view": "is posted",
    "incident-note": "is posted",
    "start-comparison": "is posted",
    "verify-savepoint": "is posted",
    "comparison-progress": "a part",
    "palette": "a part; test_palette",
    "reading": "a part",
    "shelf-life": "a part",
    "verdict": "a part",
    "verification": "a part",
    "checkpoint-subtasks-csv": "a file",
    "checkpoints-csv": "a file",
    "checkpoints-json": "a file",
    "event-log-csv": "a file",
    "event-log-json": "a file",
    "post-mortem": "a file",
    "restore-into": "redirects",
    "upgrade": "of a pipeline that was upgraded; test_upgrade_page",
    "move-query-file": "a file",
    "savepoint-manifest": "a file",
    "query-savepoint-manifest": "a file",
    "query-savepoint-action": "is posted",
    "fork-query": "is posted",
}
STATES = {
    "compared": ("compare-savepoints", r'href="(\?from=[^"]+)"'),
    "measured-lab": ("/lab/", r'href="([^"]+\?lab=1)"'),  # the older one
    "state-in-rows": ("/savepoints/views-1-1/holds/", r'href="([^"]+/state/[^"]+)"'),
    "being-verified": ("/pipelines/flight_delays/savepoints/", r'href="(/savepoints/[^"/]+/)"'),
}
"""For pages that are also shown in another state: the page with the link to it, and the link."""

FIRST = (
    *("/pipelines/views/savepoints/", "/pipelines/flight_delays/"),
    *("/watched/orders/", "/watched/baskets/works/1/"),
    *("/flink-clusters/prod/", "/"),
)
LINK = re.compile(r'href="([^"]+)"')


def all_patterns(patterns: list[URLPattern | URLResolver]) -> list[URLPattern]:
    """Returns the addresses of pages, without the namespaces for programs, which answer 401."""
    found: list[URLPattern] = []
    for each in patterns:
        if isinstance(each, URLPattern):
            found.append(each)
        elif each.namespace is None:
            found += all_patterns(each.url_patterns)
    return found


def reached_by_links(signed_in: APIRequestContext) -> dict[str, str]:
    """Returns {name in the table: an address} for each page that links lead to."""
    found: dict[str, str] = {}
    waiting = list(FIRST)
    while waiting:
        address = waiting.pop(0)
        name = name_of(address)
        if name is None or name in found or name in NO_PAGES:
            continue
        answer = signed_in.get(address)
        if answer.ok and "<html" in answer.text():
            found[name] = address
            waiting += [html.unescape(link) for link in LINK.findall(answer.text())]
    return found


def reached_states(signed_in: APIRequestContext, reached: dict[str, str]) -> dict[str, str]:
    """Returns the addresses of `STATES`."""
    found = {}
    for state, (where, link) in STATES.items():
        address = reached.get(where, where)
        (target, *_) = re.findall(link, signed_in.get(address).text())
        found[state] = urljoin(address, html.unescape(target))
    return found


def name_of(address: str) -> str | None:
    try:
        match = resolve(urlsplit(address).path)
    except Resolver404:
        return None
    return None if match.namespace else match.url_name
