"""Settings of the control plane and the dashboard.

Everything that differs between machines comes from the environment, with defaults that work on
one machine, on loopback, with nothing installed. Names start with FTDASH_.
"""

import logging
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import dj_database_url
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key

from pipelines.disk.files import create_if_absent
from pipelines.domain.clock import libpq_patience

BASE_DIR = Path(__file__).resolve().parents[1]
"""The root of the checkout, or the directory that the wheel was installed into."""

IS_CHECKOUT = (BASE_DIR / "manage.py").is_file()
FILES_DIR = BASE_DIR if IS_CHECKOUT else BASE_DIR / "ftdash" / "files"
"""Where `templates`, `static` and `docs` are; the wheel has them inside its package."""


def default_home() -> Path:
    """Returns the folder `var` of a checkout, otherwise the XDG directory for a user's data."""
    if IS_CHECKOUT:
        return BASE_DIR / "var"
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "ftdash"


FTDASH_HOME = Path(os.environ.get("FTDASH_HOME") or default_home()).absolute()
"""Everything that this installation writes: database, job directories, logs, secret key, its id."""

MANAGE_COMMAND = [sys.executable, "-m", "ftdash"]
"""Starts one of our commands as a separate process."""

JOBS_ROOT = FTDASH_HOME / "jobs"
CREDENTIALS_DIRECTORY = "CREDENTIALS_DIRECTORY"
"""The variable in which systemd names the directory of a service's credentials."""


def secret_of(name: str) -> str:
    """Reads a secret from the variable `name`, from a file, or from a systemd credential.

    The variable `name`_FILE names the file. The credential has the name of the variable, in lower
    case and with `-`. Returns an empty string if there is no secret.

    Raises:
        ImproperlyConfigured: both variables are set, or the file cannot be read or is empty.
    """
    value, file = os.environ.get(name, ""), os.environ.get(f"{name}_FILE", "")
    if value and file:
        raise ImproperlyConfigured(f"{name} and {name}_FILE are both set; unset one of them.")
    if file:
        value = read_secret(Path(file), f"{name}_FILE names {file}")
        if not value:
            raise ImproperlyConfigured(f"{name}_FILE names {file}, which is empty; fill it.")
    if not value and (directory := os.environ.get(CREDENTIALS_DIRECTORY)):
        credential = Path(directory) / name.lower().replace("_", "-")
        if credential.exists():
            value = read_secret(credential, f"the credential of {name} is {credential}")
    return value


def read_secret(path: Path, named: str) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ImproperlyConfigured(
            f"{named}, which cannot be read ({why}); correct the path, or let this account read it."
        ) from error


SECRET_VARIABLES = (
    *("FTDASH_SECRET_KEY", "FTDASH_DATABASE_URL", "FTDASH_DATABASE_PASSWORD"),
    *("FTDASH_REDIS_URL", "FTDASH_REDIS_PASSWORD"),
    *("FTDASH_OIDC_SECRET", "FTDASH_MAIL_PASSWORD", "FTDASH_SENTRY_DSN"),
)
"""Each may also come from a file or a credential (`secret_of`)."""

NEVER_PASSED = frozenset(
    (
        *(name + end for name in SECRET_VARIABLES for end in ("", "_FILE")),
        *("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
        "FTDASH_FLINK_HEADER",
    )
)
"""Variables that no process with an author's code gets, whatever the administrator allows."""


def number_of(name: str, otherwise: float) -> float:
    given = os.environ.get(name) or otherwise
    try:
        return float(given)
    except ValueError:
        raise ImproperlyConfigured(f"{name} is {given}; give a number.") from None


SECRET_KEY_IS_GIVEN = bool(secret_of("FTDASH_SECRET_KEY"))


def secret_key() -> str:
    """Returns the given key, or one that is made once and stored for its owner only."""
    if SECRET_KEY_IS_GIVEN:
        return secret_of("FTDASH_SECRET_KEY")
    return made_once("secret_key", get_random_secret_key)


def installation_id() -> str:
    """Identifies this installation to the targets of pipelines, even after a restart.

    The id is made once and stored. Its first part, the host name, is for people.
    """
    return made_once("installation_id", lambda: f"{socket.gethostname()}-{secrets.token_hex(4)}")


def made_once(name: str, make: Callable[[], str]) -> str:
    """Returns the content of the file `name` in the home, which it makes if the file is missing.

    If several processes start together, one of them makes the file, and none ever sees a part of
    it.
    """
    path = FTDASH_HOME / name
    if not path.exists():
        create_if_absent(path, make().encode())
    return path.read_text()


def names_of(variable: str) -> frozenset[str]:
    """Returns the names in an environment variable, which separates them by commas."""
    return frozenset(filter(None, map(str.strip, os.environ.get(variable, "").split(","))))


def variables_of(name: str) -> frozenset[str]:
    """Returns the names of variables, and beginnings with a `*`, in the variable `name`.

    Raises:
        ImproperlyConfigured: one of them is no name, or is a secret of the control plane.
    """
    for each in (found := names_of(name)):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", each):
            raise ImproperlyConfigured(
                f"{name} has {each!r}, which is no name of a variable; give names, separated by"
                " commas, each with at most one * at its end."
            )
        if each in NEVER_PASSED:
            raise ImproperlyConfigured(
                f"{name} has {each}, a secret of the control plane, which no pipeline gets; remove"
                " it, and give pipelines a variable of their own."
            )
    return found


PIPELINE_VARIABLES = variables_of("FTDASH_PIPELINE_VARIABLES")
"""What the administrator adds to the variables that processes with authors' code get."""


try:
    FTDASH_HOME.mkdir(parents=True, exist_ok=True)
    SECRET_KEY = secret_key()
    INSTALLATION_ID = installation_id()
except OSError as error:
    raise ImproperlyConfigured(
        f"The home {FTDASH_HOME} cannot be used: {error.strerror}; let FTDASH_HOME name a directory"
        " that this account may write, or mount that one for writing."
    ) from error
DEBUG = os.environ.get("FTDASH_DEBUG") == "1"
ALLOWED_HOSTS = os.environ.get("FTDASH_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]").split(",")

INSTALLED_APPS = [
    "django.contrib.admin.apps.SimpleAdminConfig",  # ftdash.ui.admin_site defines its content
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "csp",
    "axes",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.mfa",
    "allauth.usersessions",
    "ftdash.jobs",
    "ftdash.checkpoints",
    "ftdash.metrics",
    "ftdash.accounts",
    "ftdash.lab",
    "ftdash.gameday",
    "ftdash.watching",
    "ftdash.flink_clusters",
    "ftdash.upgrades",
    "ftdash.alerts",
    "ftdash.history",
    "ftdash.audits",
    "ftdash.points",
    "ftdash.incidents",
    "ftdash.projection",
    "ftdash.supervision",
    "ftdash.retention",
    "ftdash.command_line",
    "ftdash.ui",
    "ftdash.documentation",
    "ftdash.embedded",
    "ftdash.deployment",
]

MIDDLEWARE = [
    "ftdash.logs.named_request",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.middleware.gzip.GZipMiddleware",  # it pads each answer, against BREACH
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "ftdash.accounts.authentication.ProxySignInMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "ftdash.accounts.authentication.FirstSignInMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "axes.middleware.AxesMiddleware",
    "ftdash.django_hooks.impatient",
]

ROOT_URLCONF = "ftdash.urls"
ASGI_APPLICATION = "ftdash.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [FILES_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
            ]
        },
    }
]

CONNECTION_AGE_MAX_S = 60  # how long a thread keeps its connection

# Writers take the lock when their transaction begins: a deferred transaction that becomes a writer
# fails at once if another one wrote in between, whatever the timeout is.
SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "CONN_MAX_AGE": CONNECTION_AGE_MAX_S,
    "NAME": FTDASH_HOME / "ftdash.sqlite3",
    "OPTIONS": {
        "timeout": 20,  # seconds
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    },
}


def with_password(variable: str, url: str) -> str:
    """Returns `url` with the password from `variable`, which is a secret of its own."""
    password = secret_of(variable)
    if not password:
        return url
    place = urlsplit(url)
    who, _, where = place.netloc.rpartition("@")
    if not place.netloc or ":" in who:
        here = variable.replace("PASSWORD", "URL")
        raise ImproperlyConfigured(
            f"{variable} is given, and {here} has a password already or names no server; take one"
            " of the two away."
        )
    return place._replace(netloc=f"{who}:{quote(password, safe='')}@{where}").geturl()


def database_at(url: str) -> dict[str, Any]:
    """Returns Django's settings for the database at `url`.

    PostgreSQL gets the timeouts that sinks use, so that a silent server delays no request for long.
    """
    try:
        parsed = dj_database_url.parse(
            url, conn_max_age=CONNECTION_AGE_MAX_S, conn_health_checks=True
        )
    except ValueError:  # its message contains the address, which may contain a password
        raise ImproperlyConfigured(
            "FTDASH_DATABASE_URL is no address of a database; give one such as"
            " postgresql://ftdash@127.0.0.1:5432/ftdash."
        ) from None
    database: dict[str, Any] = dict(parsed)
    if database["ENGINE"] == "django.db.backends.postgresql":
        database["ENGINE"] = "ftdash.postgresql"
        database["OPTIONS"] = {**libpq_patience(), **database.get("OPTIONS", {})}
    return database


DATABASE_URL = with_password("FTDASH_DATABASE_PASSWORD", secret_of("FTDASH_DATABASE_URL"))
DATABASES: dict[str, dict[str, Any]] = {"default": SQLITE}
if DATABASE_URL:
    DATABASES = {"default": database_at(DATABASE_URL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {"default": {"BACKEND": "ftdash.accounts.shared_cache.SharedCache"}}
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",  # comes first: refuses after too many failures
    "django.contrib.auth.backends.ModelBackend",
]
# Counted by address: counting by name would let anyone lock anyone out. In the database, so that a
# restart does not reset the counts.
AXES_LOCKOUT_PARAMETERS = ["ip_address"]
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = timedelta(minutes=5)
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_LOCKOUT_TEMPLATE = "registration/locked_out.html"
AXES_DISABLE_ACCESS_LOG = True  # the person's row has the last sign-in
AXES_VERBOSE = False
# Sign-in by OpenID Connect. `ftdash.accounts.company` makes allauth's provider from these.
OIDC_ISSUER = os.environ.get("FTDASH_OIDC_ISSUER", "").rstrip("/")
OIDC_CLIENT_ID = os.environ.get("FTDASH_OIDC_CLIENT_ID", "")
OIDC_SECRET = secret_of("FTDASH_OIDC_SECRET")
OIDC_LABEL = os.environ.get("FTDASH_OIDC_LABEL", "your company's account")
OIDC_SCOPES = os.environ.get("FTDASH_OIDC_SCOPES", "openid profile email").split()
OIDC_NAME_CLAIM = os.environ.get("FTDASH_OIDC_NAME_CLAIM", "preferred_username")
OIDC_GROUPS_CLAIM = os.environ.get("FTDASH_OIDC_GROUPS_CLAIM", "groups")
REMOTE_USER_HEADER = os.environ.get("FTDASH_REMOTE_USER_HEADER", "")
"""The header in which a proxy names the person who has signed in.

Only the proxies of FTDASH_TRUSTED_PROXIES may send it.
"""

REMOTE_GROUPS_HEADER = os.environ.get("FTDASH_REMOTE_GROUPS_HEADER", "")
"""The header with the groups of that person, separated by commas."""

OPERATOR_GROUPS = names_of("FTDASH_OPERATOR_GROUPS")
ADMIN_GROUPS = names_of("FTDASH_ADMIN_GROUPS")
"""Groups of the company whose members are operators and admins here."""

SOCIALACCOUNT_ADAPTER = "ftdash.accounts.company.CompanyAdapter"
SOCIALACCOUNT_LOGIN_ON_GET = True  # `form-action` forbids a form that leads to another site
ACCOUNT_ADAPTER = "ftdash.accounts.company.PlainAdapter"
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_LOGIN_METHODS = {"username"}
MFA_ADAPTER = "ftdash.accounts.second_factor.FactorAdapter"
MFA_FORMS = {
    "authenticate": "ftdash.accounts.second_factor.SignInForm",
    "reauthenticate": "ftdash.accounts.second_factor.ConfirmForm",
}
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_TOTP_ISSUER = "ftdash"
MFA_TOTP_TOLERANCE = 1  # how many steps of 30 s a telephone's clock may be off
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"

LOG_JSON_VARIABLE = "FTDASH_LOG_JSON"
LOG_JSON = os.environ.get(LOG_JSON_VARIABLE) == "1"
# Each process writes to its standard error; its starter decides where that goes.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        "json": {"()": "ftdash.logs.JsonLines"},
    },
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "json" if LOG_JSON else "line"}
    },
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {"ftdash.requests": {"level": "INFO" if LOG_JSON else "WARNING"}},
}
if LOG_JSON:  # Python itself writes a warning as plain text
    logging.captureWarnings(True)

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
STATIC_ROOT = FTDASH_HOME / "static"
STATICFILES_DIRS = [FILES_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "ftdash.django_hooks.PlotlyFinder",
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

# Pages with charts allow more, see ftdash.ui.pipelines.page.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}
FLINK_WEB = os.environ.get("FTDASH_FLINK_WEB", "")
"""The folder with Flink's web page, served under /flink/: web/ of flink-dist-2.3.0.jar."""

# Loopback speaks plain http; an installation behind TLS sets FTDASH_TLS=1.
BEHIND_TLS = os.environ.get("FTDASH_TLS") == "1"
SESSION_COOKIE_SECURE = BEHIND_TLS
CSRF_COOKIE_SECURE = BEHIND_TLS
if BEHIND_TLS:  # browsers accept these only over TLS, from this very host
    SESSION_COOKIE_NAME = "__Host-sessionid"
    CSRF_COOKIE_NAME = "__Host-csrftoken"
SECURE_SSL_REDIRECT = BEHIND_TLS
SECURE_HSTS_SECONDS = int(timedelta(days=365).total_seconds()) if BEHIND_TLS else 0
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"  # strict would sign out a person who follows a link of an alert
CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_AGE = int(timedelta(hours=12).total_seconds())
SECURE_REFERRER_POLICY = "same-origin"
# `check --deploy` warns about other hosts of the domain, which are not ours, and, on loopback,
# about TLS.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
if not BEHIND_TLS:
    SILENCED_SYSTEM_CHECKS += [f"security.W0{number}" for number in ("04", "08", "12", "16")]
TRUSTED_PROXIES = os.environ.get("FTDASH_TRUSTED_PROXIES", "127.0.0.1")
"""Addresses and networks, separated by commas, whose `X-Forwarded-For` and `-Proto` are believed.

ftdash counts wrong passwords by client address, so believing every peer would let anyone evade the
limit.
"""

CSRF_TRUSTED_ORIGINS = [o for o in os.environ.get("FTDASH_TRUSTED_ORIGINS", "").split(",") if o]


def embedded_redis(home: Path) -> str | None:
    """Returns the address of the Redis that the demonstration in `home` has started.

    Commands for that home use it. None means that there is none, or that this account may not read
    its configuration.
    """
    try:
        lines = (home / "redis" / "redis.conf").read_text().splitlines()
    except (FileNotFoundError, PermissionError):
        return None
    given = dict(line.split(maxsplit=1) for line in lines if line)
    return f"redis://:{given['requirepass']}@{given['bind']}:{given['port']}/0"


REDIS_URL = with_password("FTDASH_REDIS_PASSWORD", secret_of("FTDASH_REDIS_URL")) or (
    embedded_redis(FTDASH_HOME) or "redis://127.0.0.1:6379/0"
)
if urlsplit(REDIS_URL).scheme not in ("redis", "rediss", "unix"):
    raise ImproperlyConfigured(
        "FTDASH_REDIS_URL is no address of Redis; give one such as redis://127.0.0.1:6379/0."
    )
RECONCILE_PERIOD_S = 2.0
ALERT_PERIOD_S = 5.0
PRUNE_PERIOD_S = 300.0
WATCH_PERIOD_S = 5.0
CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Longer than any task may take, or the broker hands a running task to a second worker.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 600,
    "socket_connect_timeout": 2,
    "socket_timeout": 10,
    "socket_keepalive": True,
    # One try, then the page continues; the worker itself retries without end.
    "max_retries": 1,
    "interval_start": 0,
}
# A page that posts a request must not wait for a broker that is away: reconcile delivers later.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_CONNECTION_TIMEOUT = 2
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_TIME_LIMIT = 300
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_POOL = "threads"
CELERY_WORKER_CONCURRENCY = 2
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BEAT_SCHEDULE_FILENAME = str(FTDASH_HOME / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = {
    "reconcile": {
        "task": "ftdash.tasks.reconcile",
        "schedule": RECONCILE_PERIOD_S,
        # A beat that no worker took in time is worthless: the next one does the same.
        "options": {"expires": 3 * RECONCILE_PERIOD_S},
    },
    "reconcile-game-days": {
        "task": "ftdash.tasks.reconcile_game_days",
        "schedule": RECONCILE_PERIOD_S,
        "options": {"expires": 3 * RECONCILE_PERIOD_S},
    },
    "reconcile-upgrades": {
        "task": "ftdash.tasks.reconcile_upgrades",
        "schedule": RECONCILE_PERIOD_S,
        "options": {"expires": 3 * RECONCILE_PERIOD_S},
    },
    "reconcile-labs": {
        "task": "ftdash.tasks.reconcile_labs",
        "schedule": RECONCILE_PERIOD_S,
        "options": {"expires": 3 * RECONCILE_PERIOD_S},
    },
    "evaluate-alerts": {
        "task": "ftdash.tasks.evaluate_alerts",
        "schedule": ALERT_PERIOD_S,
        "options": {"expires": ALERT_PERIOD_S},
    },
    "shorten-run-files": {
        "task": "ftdash.tasks.shorten_run_files",
        "schedule": PRUNE_PERIOD_S,
        "options": {"expires": PRUNE_PERIOD_S},
    },
    "prune-history": {
        "task": "ftdash.tasks.prune_history",
        "schedule": PRUNE_PERIOD_S,
        "options": {"expires": PRUNE_PERIOD_S},
    },
    "look-at-watched-files": {
        "task": "ftdash.tasks.look_at_watched_files",
        "schedule": WATCH_PERIOD_S,
        "options": {"expires": WATCH_PERIOD_S},
    },
    "look-at-flink-clusters": {
        "task": "ftdash.tasks.look_at_flink_clusters",
        "schedule": WATCH_PERIOD_S,
        "options": {"expires": WATCH_PERIOD_S},
    },
    "look-after-query-work": {
        "task": "ftdash.tasks.look_after_query_work",
        "schedule": WATCH_PERIOD_S,
        "options": {"expires": WATCH_PERIOD_S},
    },
    "deliver-alerts": {
        "task": "ftdash.tasks.deliver_alerts",
        "schedule": ALERT_PERIOD_S,
        "options": {"expires": ALERT_PERIOD_S},
    },
}

WATCH_ROOTS = [
    root.strip().replace("s3a://", "s3://", 1)  # Spark's name for the same place
    for root in os.environ.get("FTDASH_WATCH_ROOTS", "").split(",")
    if root.strip()
]
"""Directories and `s3://bucket/prefix` whose checkpoints and event logs may be watched, separated
by commas. Nothing there is changed; forks of queries become new directories below them."""

WATCH_SAVEPOINTS = os.environ.get("FTDASH_WATCH_SAVEPOINTS") or str(
    FTDASH_HOME / "query-savepoints"
)
"""Directory or `s3://bucket/prefix` for savepoints of watched queries."""

WATCH_VERIFY_DAYS = number_of("FTDASH_WATCH_VERIFY_DAYS", 7)
"""ftdash reads each savepoint of a watched query again after this many days."""

BASE_URL = os.environ.get("FTDASH_BASE_URL", "")
"""The dashboard's address for people, for links in messages: https://ftdash.example.org."""

WEBHOOK_PRIVATE = os.environ.get("FTDASH_WEBHOOK_PRIVATE") == "1"
"""Allows alerts to private addresses and loopback, which every admin can then reach."""

MAIL_IS_SET = "FTDASH_MAIL_HOST" in os.environ
EMAIL_HOST = os.environ.get("FTDASH_MAIL_HOST", "localhost")
EMAIL_PORT = int(number_of("FTDASH_MAIL_PORT", 587))
EMAIL_HOST_USER = os.environ.get("FTDASH_MAIL_USER", "")
EMAIL_HOST_PASSWORD = secret_of("FTDASH_MAIL_PASSWORD")
SENTRY_DSN = secret_of("FTDASH_SENTRY_DSN")
EMAIL_USE_SSL = EMAIL_PORT == 465
EMAIL_USE_TLS = not EMAIL_USE_SSL and os.environ.get("FTDASH_MAIL_TLS", "1") == "1"
EMAIL_TIMEOUT = 5  # seconds
DEFAULT_FROM_EMAIL = os.environ.get("FTDASH_MAIL_FROM", "ftdash@localhost")

SERVERS_ANSWER_WITHIN_S = 5.0
"""How long a web request waits for the answer of a source or sink before it gives up."""

SILENT_AFTER_S = 8.0
"""A driver and the projector report once a second, the worker every two seconds.

A process that has not reported for this long is called silent. A shorter bound would also name
processes that a busy machine merely delays for some seconds. Meanwhile, every page shows the age of
its data.
"""

CLOCKS_DIFFER_S = 3.0
"""If the clocks of two machines differ by more than this, there is a reason for it."""

PROJECTOR_POLL_MS = 300
PROJECTOR_LAG_MAX_S = number_of("FTDASH_PROJECTOR_LAG_MAX_S", 60)
"""If the projector has not read an event that is older than this, `/readyz` answers 503."""

SAMPLE_RETENTION_S = 1800
"""Samples older than this, measured from a run's newest, are deleted; an admin may change it."""

HISTORY_RETENTION_DAYS = 90
"""Days that failed and discarded checkpoints, events, alerts and labs are kept, by default."""

JOURNAL_RETENTION_DAYS = int(number_of("FTDASH_JOURNAL_RETENTION_DAYS", 30))
"""Segments of a run's journal that ended more days ago, and have been read, are deleted.

The deleted part can no longer be audited or folded into rows again; the rows stay.
"""

RUN_LOG_BYTES_MAX = 16 << 20
"""A longer driver.log is emptied; that much of its end goes to driver.log.1, next to it."""

SAMPLE_RETENTION_RUNS = 10
"""How many of the newest runs of a pipeline keep their samples; those of older ones are deleted."""

PHASE_RETENTION_CHECKPOINTS = 2000
"""Per run, the phases of this many checkpoints are kept; the checkpoints' own rows stay."""

LAB_COMMAND = [sys.executable, "-m", "pipelines.lab", "--json"]
LAB_KEEPER_COMMAND = [*MANAGE_COMMAND, "carry_out", "lab"]
STATE_COMMAND = [sys.executable, "-m", "pipelines.spark.questions", "state"]
REPARTITION_COMMAND = [sys.executable, "-m", "pipelines.spark.questions", "partitions"]
DRIVER_COMMAND = [sys.executable, "-m", "pipelines.spark.driver", "--redis-on-stdin"]
PACKAGE_BYTES_MAX = 64 << 20
"""The size limit of a wheel that is uploaded on a page; a command accepts larger ones."""

FILE_UPLOAD_HANDLERS = [
    "ftdash.django_hooks.SizeLimit",
    "django.core.files.uploadhandler.MemoryFileUploadHandler",
    "django.core.files.uploadhandler.TemporaryFileUploadHandler",
]

REQUEST_DEADLINE_S = 120
START_DEADLINE_S = 300
DELIVERY_GRACE_S = 1.0
"""A request older than this that no worker has delivered is delivered by reconcile."""

DRIVER_STARTS_MAX = 10
"""How many drivers may die in a row, without a completed checkpoint, before the run is given up."""

DRIVER_START_BACKOFF_S = 2.0
DRIVER_START_BACKOFF_MAX_S = 30.0
DRIVER_STARTUP_GRACE_S = 60.0
"""How long a driver that was just started may take until it holds the lease."""

DRIVER_STOP_GRACE_S = 20.0
"""The time from the cancel request to the kill."""

CHECKPOINT_LATE_AFTER_S = 60.0
"""A running pipeline without a completed checkpoint for this long needs attention."""
