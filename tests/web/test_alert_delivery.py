"""Alert messages: signed, never sent to a forbidden machine, and not repeated once accepted."""

import json
import socket
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from typing import Any

import httpx
import pytest
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.accounts.models import AdminAction
from ftdash.alerts import delivery, evaluation, queries, services
from ftdash.alerts.delivery import LASTS, Message, take_turn
from ftdash.alerts.models import Alert, AlertRule, Channel, Delivery, News, SendingTurn, Watched
from ftdash.jobs.models import Pipeline
from pipelines.domain.errors import Rejected
from tests.reserved_ports import reserved_port
from tests.web.journals import new_run

pytestmark = pytest.mark.usefixtures("site")

WRONG_ADDRESSES = {
    "no address": "begins with https://",
    "ftp://example.org/x": "begins with https://",
    "https:///x": "begins with https://",
    "https://ada:secret@example.org/": "no user or password",
    "http://[::1": "no address of a webhook",
    "https://hooks..example.org/": "'hooks..example.org' can be the name of no machine",
    f"https://{'x' * 64}.org/": "can be the name of no machine",
}
PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",  # cloud metadata
    "100.64.0.1",
    "0.0.0.0",
    "::1",
    "fd00::1",
    "fe80::1",
    "::ffff:127.0.0.1",
    "2002:7f00:1::",
    "64:ff9b::a9fe:a9fe",
]


class Receiver(HTTPServer):
    """Accepts messages on loopback; answers with the status set by the test, else 204."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[int] = []
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?key=hidden"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.taken]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.server.taken.append((dict(self.headers), body))
        status = self.server.answers.pop(0) if self.server.answers else 204
        self.send_response(status)
        if status in (302, 307):
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.WEBHOOK_PRIVATE = True
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_alert_is_posted_once_and_signed_with_the_shown_key(receiver: Receiver) -> None:
    key = webhook(receiver)
    fire()

    delivery.deliver_due()
    delivery.deliver_due()

    [(headers, body)] = receiver.taken
    message = json.loads(body)
    assert (message["news"], message["rule"], message["pipeline"]) == ("FIRED", "late", "flights")
    assert (message["value"], message["threshold"], message["unit"]) == (95.0, 60.0, "seconds")
    assert "1 min 35 s; it fires above 1 min 00 s" in message["text"]
    sent_at_s = int(headers[delivery.SIGNATURE_HEADER].partition(",")[0].removeprefix("t="))
    assert headers[delivery.SIGNATURE_HEADER] == delivery.signature(key, sent_at_s, body)
    assert abs(sent_at_s - timezone.now().timestamp()) < 60
    newest = queries.channel("ops").newest
    assert newest.sent_at is not None
    assert newest.attempts == 1


def test_the_signature_depends_on_key_body_and_time() -> None:
    given = delivery.signature("key", 1, b"body")

    assert given != delivery.signature("kez", 1, b"body")
    assert given != delivery.signature("key", 2, b"body")
    assert given != delivery.signature("key", 1, b"bodz")
    assert delivery.key_of("a") != delivery.key_of("b")


def test_a_webhook_key_is_not_stored_and_its_address_is_shown_without_its_path(
    receiver: Receiver, admin: Client
) -> None:
    key = webhook(receiver)

    shown = f"http://127.0.0.1:{receiver.server_port}/…"
    page = admin.get(reverse("settings")).content.decode()

    assert queries.channel("ops").address == shown
    assert shown in page
    assert key not in str(Channel.objects.values())
    for text in (page, str(AdminAction.objects.values())):
        assert "key=hidden" not in text
        assert key not in text


@pytest.mark.parametrize("answer", [302, 307, 400, 500])
def test_a_refused_message_is_retried_later_under_the_same_id(
    receiver: Receiver, answer: int
) -> None:
    webhook(receiver)
    fire()
    receiver.answers = [answer]

    delivery.deliver_due()
    waiting = Delivery.objects.get()
    assert waiting.problem == f"It answered {answer}."
    assert waiting.due_at > timezone.now()
    assert receiver.paths == ["/hook?key=hidden"]  # it does not follow the redirect
    make_due()
    delivery.deliver_due()

    assert Delivery.objects.get().sent_at is not None
    assert Delivery.objects.get().problem == ""
    assert [body["id"] for body in receiver.bodies] == [waiting.pk, waiting.pk]


@pytest.mark.usefixtures("no_time_passes")
def test_a_message_that_is_never_accepted_is_given_up_after_the_last_try(
    receiver: Receiver,
) -> None:
    webhook(receiver)
    fire()
    receiver.answers = [500] * 100

    waits = []
    for _ in range(delivery.ATTEMPTS_MAX + 3):
        delivery.deliver_due()
        waits.append((Delivery.objects.get().due_at - timezone.now()).total_seconds())
        make_due()

    assert len(receiver.taken) == delivery.ATTEMPTS_MAX
    assert Delivery.objects.get().given_up_at is not None
    assert waits[:3] == [5.0, 10.0, 20.0]
    assert max(waits) <= delivery.RETRY_MAX_S


def test_a_cleared_message_waits_for_its_fired_message(receiver: Receiver) -> None:
    webhook(receiver)
    fire()
    receiver.answers = [500]
    delivery.deliver_due()
    evaluation.clear(Alert.objects.all(), "The run is over.", timezone.now())

    delivery.deliver_due()
    assert [body["news"] for body in receiver.bodies] == ["FIRED"]
    make_due()
    delivery.deliver_due()

    assert [body["news"] for body in receiver.bodies] == ["FIRED", "FIRED", "CLEARED"]
    assert "The run is over." in receiver.bodies[-1]["text"]


def test_a_cleared_alert_does_not_clear_again(receiver: Receiver) -> None:
    webhook(receiver)
    fire()

    for because in ("The run is over.", "The rule was deleted by ada."):
        evaluation.clear(Alert.objects.all(), because, timezone.now())

    assert Alert.objects.get().cleared_because == "The run is over."
    assert Delivery.objects.count() == 2


def test_a_concurrently_cleared_alert_sends_one_message_and_keeps_its_reason(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook(receiver)
    fire("late")
    fire("later")
    tell_all = evaluation._tell_all

    def tell_and_meet_somebody(alert: Alert, news: News, now: datetime) -> None:
        tell_all(alert, news, now)
        if alert.rule_name == "late" or news is not News.CLEARED:
            return
        evaluation.clear(Alert.objects.filter(rule_name="late"), "The run is over.", now)

    monkeypatch.setattr(evaluation, "_tell_all", tell_and_meet_somebody)
    evaluation.clear(Alert.objects.all(), "The rule was deleted by ada.", timezone.now())

    assert Alert.objects.get(rule_name="late").cleared_because == "The run is over."
    assert Delivery.objects.filter(alert__rule_name="late", news=News.CLEARED).count() == 1


def test_two_workers_do_not_send_the_same_message_at_once(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook(receiver)
    fire()
    [seen] = delivery._due(timezone.now())

    delivery.deliver_due()

    monkeypatch.setattr(delivery, "_due", lambda _: [seen])  # the other worker saw it before
    assert delivery._claim_next(timezone.now()) is None
    assert len(receiver.taken) == 1


def test_a_worker_waiting_for_a_hanging_receiver_does_not_block_others(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook(receiver)
    fire()
    services.send_test(name="ops", requester="ada", reason="is it on?")
    asked: list[int] = []

    def hang(_: Channel, message: Message) -> None:
        asked.append(message.id)
        if len(asked) < 10:
            assert not delivery.deliver_due()  # a second worker, meanwhile
        raise httpx.ReadTimeout("It timed out.")

    monkeypatch.setattr(delivery, "post_message", hang)

    assert not delivery.deliver_due()
    assert len(asked) == 1


def test_a_hanging_receiver_is_tried_once_and_others_get_every_message(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(delivery, "FIRST_RETRY_S", 300.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made(f"http://127.0.0.1:{silent.getsockname()[1]}/", name="silent")
        webhook(receiver)
        for name in ("late", "later", "latest"):
            fire(name)

        delivery.deliver_due()

    tried = Delivery.objects.filter(channel__name="silent").order_by("pk")
    assert [each.attempts for each in tried] == [1, 0, 0]
    assert {each.due_at for each in tried} == {tried[0].due_at}
    assert tried[0].due_at > timezone.now()
    assert [body["rule"] for body in receiver.bodies] == ["late", "later", "latest"]


def test_untried_messages_are_sent_before_retries(receiver: Receiver) -> None:
    webhook(receiver)
    fire("late")
    receiver.answers = [500]
    delivery.deliver_due()
    fire("later")
    make_due()

    delivery.deliver_due()

    assert [body["rule"] for body in receiver.bodies] == ["late", "later", "late"]


def test_messages_of_a_worker_that_died_are_sent_by_the_next_one(receiver: Receiver) -> None:
    webhook(receiver)
    fire()
    now = timezone.now()
    assert take_turn(now) is not None  # this worker never returns

    delivery.deliver_due()
    assert receiver.taken == []
    SendingTurn.objects.update(until=timezone.now())
    delivery.deliver_due()

    assert len(receiver.taken) == 1


def test_a_worker_keeps_its_sending_turn_until_it_is_silent_too_long() -> None:
    now = timezone.now()
    first = take_turn(now)
    assert first is not None
    assert first.try_keep(now + LASTS / 2)
    assert take_turn(now + LASTS) is None
    second = take_turn(now + 2 * LASTS)
    assert second is not None

    assert not first.try_keep(now + 2 * LASTS)
    first.end(now + 2 * LASTS)
    assert take_turn(now + 2 * LASTS) is None
    assert second.try_keep(now + 2 * LASTS)
    second.end(now + 2 * LASTS)
    assert take_turn(now + 2 * LASTS) is not None
    assert take_turn(now - timedelta(hours=1)) is not None  # the clock was set back


def test_an_unexpected_error_releases_the_sending_turn(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook(receiver)
    fire()

    def broken(*_: object) -> None:
        raise RuntimeError("Nobody thought of this.")

    with monkeypatch.context() as patched:
        patched.setattr(delivery, "post_message", broken)
        with pytest.raises(RuntimeError):
            delivery.deliver_due()
    make_due()
    delivery.deliver_due()

    assert len(receiver.taken) == 1


def test_a_message_that_cannot_be_written_is_a_failed_try(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook(receiver)
    fire()

    def unwritable(*_: object) -> None:
        raise ValueError("A header holds a line break.")

    monkeypatch.setattr(delivery, "post_message", unwritable)
    delivery.deliver_due()

    assert Delivery.objects.get().problem == "A header holds a line break."


def test_unexpected_errors_use_up_the_same_number_of_tries(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook(receiver)
    fire()
    tries: list[Message] = []

    def broken(_: Channel, message: Message) -> None:
        tries.append(message)
        raise RuntimeError("Nobody thought of this.")

    monkeypatch.setattr(delivery, "post_message", broken)
    for _ in range(delivery.ATTEMPTS_MAX):
        make_due()
        with pytest.raises(RuntimeError):
            delivery.deliver_due()
    delivery.deliver_due()
    assert Delivery.objects.get().given_up_at is None  # the last try may be under way
    make_due()
    delivery.deliver_due()

    assert len(tries) == delivery.ATTEMPTS_MAX
    given_up = Delivery.objects.get()
    assert given_up.given_up_at is not None
    assert given_up.problem == "No try came to an end; the log of the worker says more."


def test_a_channel_of_one_pipeline_gets_no_alerts_of_others(receiver: Receiver) -> None:
    new_run("views")
    webhook(receiver, pipeline="views")

    fire()

    assert not Delivery.objects.exists()


def test_a_test_message_is_tried_once_and_its_outcome_shown(receiver: Receiver) -> None:
    webhook(receiver)
    receiver.answers = [503]

    services.send_test(name="ops", requester="ada", reason="is it on?")
    delivery.deliver_due()
    assert queries.channel("ops").newest.problem == "It answered 503."
    assert queries.channel("ops").newest.given_up_at is not None
    services.send_test(name="ops", requester="ada", reason="again")
    delivery.deliver_due()

    assert queries.channel("ops").newest.sent_at is not None
    assert receiver.bodies[-1]["news"] == "TEST"


def test_an_unreachable_receiver_is_reported_in_words(receiver: Receiver, settings: Any) -> None:
    webhook(receiver)
    services.send_test(name="ops", requester="ada", reason="is it on?")

    with reserved_port() as port:
        Channel.objects.update(address=f"http://127.0.0.1:{port}/")
        delivery.deliver_due()

    assert "refused" in queries.channel("ops").newest.problem


@pytest.mark.parametrize("address", WRONG_ADDRESSES)
def test_an_invalid_webhook_address_is_refused(address: str) -> None:
    with pytest.raises(Rejected, match=WRONG_ADDRESSES[address]):
        made(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_no_message_goes_to_a_private_address(address: str) -> None:
    with pytest.raises(Rejected, match="not a public address"):
        delivery.check_address(
            httpx.URL("https://example.org"), ip_address(address), allows_private=False
        )


def test_a_loopback_host_name_is_refused_at_creation_and_at_delivery(
    receiver: Receiver, settings: Any
) -> None:
    made(f"http://localhost:{receiver.server_port}/")
    settings.WEBHOOK_PRIVATE = False
    services.send_test(name="ops", requester="ada", reason="is it on?")

    delivery.deliver_due()

    assert "not a public address" in queries.channel("ops").newest.problem
    assert receiver.taken == []
    with pytest.raises(Rejected, match="not a public address"):
        made(f"http://localhost:{receiver.server_port}/", name="other")


def test_plain_http_is_allowed_for_loopback_only() -> None:
    for address in ("10.1.2.3", "93.184.216.34"):
        with pytest.raises(Rejected, match="http is for loopback alone"):
            delivery.check_address(
                httpx.URL("http://example.org"), ip_address(address), allows_private=True
            )


def test_a_message_goes_to_the_checked_ip_address_with_its_host_name(
    receiver: Receiver,
) -> None:
    target = delivery.resolve(f"http://localhost:{receiver.server_port}/hook", allows_private=True)

    assert target.url.host in ("127.0.0.1", "::1")
    assert target.host == "localhost"
    assert target.host_header == f"localhost:{receiver.server_port}"


def test_a_mail_goes_to_each_address(settings: Any) -> None:
    settings.MAIL_IS_SET = True
    services.make_mail(
        name="team",
        addresses="a@example.org, b@example.org",
        pipeline=None,
        requester="ada",
        reason="drill",
    )
    fire()

    delivery.deliver_due()

    [sent] = mail.outbox
    assert sent.to == ["a@example.org", "b@example.org"]
    assert sent.subject == "ftdash: flights: late fires"
    assert "1 min 35 s" in sent.body


@pytest.mark.parametrize("given", ["", "nobody", "a@example.org, b", "a@example.org\nBcc: x"])
def test_an_invalid_mail_address_is_refused(settings: Any, given: str) -> None:
    settings.MAIL_IS_SET = True

    with pytest.raises(Rejected, match="mail address"):
        services.make_mail(
            name="team", addresses=given, pipeline=None, requester="ada", reason="drill"
        )


def test_a_mail_channel_requires_a_mail_server() -> None:
    with pytest.raises(Rejected, match="FTDASH_MAIL_HOST"):
        services.make_mail(
            name="team", addresses="a@example.org", pipeline=None, requester="ada", reason="x"
        )


def test_a_deleted_channel_gets_no_further_messages(receiver: Receiver) -> None:
    webhook(receiver)
    fire()

    services.delete_channel(name="ops", requester="ada", reason="moved")
    delivery.deliver_due()

    assert receiver.taken == []


def webhook(receiver: Receiver, pipeline: str | None = None) -> str:
    return made(receiver.url, pipeline=pipeline)


def made(address: str, name: str = "ops", pipeline: str | None = None) -> str:
    return services.make_webhook(
        name=name, address=address, pipeline=pipeline, requester="ada", reason="drill"
    ).key


def fire(name: str = "late") -> None:
    pipeline = Pipeline.objects.filter(name="flights").first() or new_run().pipeline
    rule = AlertRule.objects.create(
        name=name,
        watched=Watched.SINCE_CHECKPOINT,
        fire_above=60.0,
        fire_after_s=10.0,
        clear_below=30.0,
        clear_after_s=10.0,
    )
    evaluation.fire(rule, pipeline, 95.0, timezone.now(), fire_above=60.0)


def make_due() -> None:
    past = timezone.now() - timedelta(seconds=1)
    Delivery.objects.filter(sent_at=None).update(due_at=past)
