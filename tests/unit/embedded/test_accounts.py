"""The two accounts of an embedded installation."""

import pytest
from django.conf import LazySettings
from django.contrib.auth import authenticate
from django.http import HttpRequest

from ftdash.embedded.demo import Account, provide_accounts

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quick_hash(settings: LazySettings) -> None:
    """The real hash takes half a second on purpose, and these tests make two dozen."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def test_the_admin_may_act_and_the_operator_may_only_see() -> None:
    admin, operator = provide_accounts(new_passwords=False)

    acting = authenticate(HttpRequest(), username=admin.name, password=admin.password)
    seeing = authenticate(HttpRequest(), username=operator.name, password=operator.password)

    assert acting.has_perm("jobs.operate")
    assert not seeing.has_perm("jobs.operate")


def test_passwords_survive_a_restart_unless_new_ones_are_requested() -> None:
    first = provide_accounts(new_passwords=False)

    again = provide_accounts(new_passwords=False)
    kept = [is_opened_by(account) for account in first]
    renewed = provide_accounts(new_passwords=True)

    assert [account.password for account in again] == [None, None]
    assert kept == [True, True]
    assert len({account.password for account in [*first, *renewed]}) == 4
    assert [is_opened_by(account) for account in first] == [False, False]
    assert [is_opened_by(account) for account in renewed] == [True, True]


def is_opened_by(account: Account) -> bool:
    found = authenticate(HttpRequest(), username=account.name, password=account.password)
    return found is not None
