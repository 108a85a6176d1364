"""The two accounts of an embedded installation."""

import pytest
from django.contrib.auth import authenticate
from django.http import HttpRequest

from ftdash.embedded.demo import provide_accounts

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


def test_the_admin_may_act_and_the_operator_may_only_see() -> None:
    admin, operator = provide_accounts(new_passwords=False)

    acting = authenticate(HttpRequest(), username=admin.name, password=admin.password)
    seeing = authenticate(HttpRequest(), username=operator.name, password=operator.password)

    assert acting.has_perm("jobs.operate")
    assert not seeing.has_perm("jobs.operate")


def test_passwords_survive_a_restart_unless_new_ones_are_requested() -> None:
    first = provide_accounts(new_passwords=False)

    again = provide_accounts(new_passwords=False)
    renewed = provide_accounts(new_passwords=True)

    assert [account.password for account in again] == [None, None]
    assert len({account.password for account in [*first, *renewed]}) == 4
    assert authenticate(HttpRequest(), username="admin", password=first[0].password) is None
    assert authenticate(HttpRequest(), username="admin", password=renewed[0].password) is not None
