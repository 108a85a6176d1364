"""A client that acts like a person at the dashboard, and reports each failure in a sentence."""

import pytest

from ftdash.embedded.check import DashboardClient
from ftdash.embedded.demo import Account
from ftdash.embedded.installation import free_port
from ftdash.embedded.stack import web_address
from pipelines.domain.errors import Rejected


def test_an_unresponsive_dashboard_is_reported_in_a_sentence() -> None:
    with (
        DashboardClient(web_address(free_port())) as dashboard,
        pytest.raises(Rejected, match="The dashboard did not answer to /"),
    ):
        dashboard.sign_in(Account("admin", "secret"))
