"""The cache that all web servers share: used codes, counts of wrong codes and of wrong tokens."""

import json
from pathlib import Path

import pytest

from tests.new_home import new_home
from tests.web.installations import Installation, Installations

TABLES = """
from tests.new_home import make_tables
make_tables()
"""
BEGIN = """
import json
from django.conf import settings
from django.test import Client
from ftdash.accounts import authentication

PLAIN = "django.contrib.staticfiles.storage.StaticFilesStorage"
authentication.WINDOW_S = 3600  # the second server may begin late
settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": PLAIN}}
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def sign_in(*codes):
    client = Client(SERVER_NAME="localhost")
    client.post("/login/", {"username": "olaf", "password": "correct horse battery"})
    said = [client.post("/second-factor/ask/", {"code": code}) for code in codes]
    is_limited = "Too many failed login attempts" in said[-1].content.decode()
    return client.get("/alerts/").status_code == 200, is_limited


def wrong_tokens(count):
    client = Client(SERVER_NAME="localhost")
    headers = {"Authorization": "Bearer ftd_wrong"}
    return [client.get("/api/pipelines", headers=headers).status_code for _ in range(count)]
"""
FIRST_SERVER = f"""{TABLES}{BEGIN}
from allauth.mfa.totp.internal import auth
from django.contrib.auth.models import User

secret = auth.generate_totp_secret()
auth.TOTP.activate(User.objects.create_user("olaf", password="correct horse battery"), secret)
counter = list(auth.yield_hotp_counters_from_time())[-1]  # the code that is valid for longest
code = auth.format_hotp_value(auth.hotp_value(secret, counter))
once = sign_in(code)
print(json.dumps([code, once, sign_in("000000", "000001", "000002"), wrong_tokens(12)]))
"""
SECOND_SERVER = """{begin}
print(json.dumps([sign_in("{code}"), sign_in("000003", "000004"), wrong_tokens(12)]))
"""
RACES = f"""{TABLES}
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import time
from django.core.cache import cache
from ftdash.accounts import shared_cache

THREADS = 4
start = Barrier(THREADS)


def race(number):
    won = []
    for turn in range(10):
        start.wait()
        won.append(cache.add(f"key-{{turn}}", number, 60))
        cache.incr("count")
    return won


for turn in range(5):
    cache.set(f"key-{{turn}}", "expired", -1)
cache.set("count", 0, 60)
with ThreadPoolExecutor(THREADS) as threads:
    won = list(threads.map(race, range(THREADS)))
print([sum(each) for each in zip(*won)], cache.get("count"))
"""


@pytest.mark.slow
def test_two_web_servers_refuse_a_code_twice_and_count_wrong_ones_together(
    installations: Installations,
) -> None:
    here = prepared(installations("shared"))

    code, *first = json.loads(here.python(FIRST_SERVER))
    second = json.loads(here.python(SECOND_SERVER.format(begin=BEGIN, code=code)))

    assert first == [[True, False], [False, False], [401] * 12]
    assert second == [[False, False], [False, True], [401] * 8 + [429] * 4]


@pytest.mark.slow
def test_one_of_many_adds_a_key_and_no_count_is_lost(installations: Installations) -> None:
    said = prepared(installations("races")).python(RACES)

    assert said == f"{[1] * 10} 40\n"


def prepared(installation: Installation) -> Installation:
    if installation.database is None:
        new_home(installation.home)
    return installation


@pytest.mark.usefixtures("site")
def test_an_expired_entry_is_gone_and_deleted(site: Path) -> None:
    from django.core.cache import cache

    from ftdash.accounts.models import CacheEntry
    from ftdash.accounts.shared_cache import forget_expired

    cache.set("over", [1.5], -1)
    cache.set("valid", [2.5], 60)
    cache.set("for-good", [3.5], None)

    assert cache.get("over") is None
    assert not cache.touch("over")
    assert [cache.get("valid"), cache.get("for-good")] == [[2.5], [3.5]]
    forget_expired()
    assert CacheEntry.objects.count() == 2
