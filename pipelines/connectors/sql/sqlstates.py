"""Decides how to answer a database error: try again, look first, or end.

One table has every class of SQLSTATE, a second one the states that differ from their class. An
error without a SQLSTATE comes from SQLite or from the driver; its Python class decides.

Source: PostgreSQL, Appendix A (error codes); psycopg, `psycopg.errors`.
"""

from enum import StrEnum

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError


class Verdict(StrEnum):
    """All but END repeat the transaction, which looks first whether its work is done."""

    AGAIN = "again"
    """The database is away, busy or full. It may work later, however long that takes."""

    LOOK_FIRST = "look first"
    """The work may have been done: a COMMIT whose answer was lost was still under way, or another
    session made the same table. An error that comes back each time is no coincidence, and ends the
    run."""

    END = "end"
    """The same statement fails in the same way each time."""


AGAIN, LOOK_FIRST, END = Verdict.AGAIN, Verdict.LOOK_FIRST, Verdict.END

CLASSES = {
    "02": END,  # no data
    "03": END,  # SQL statement not yet complete
    "08": AGAIN,  # connection exception, also while a COMMIT is under way (08007)
    "09": END,  # triggered action exception
    "0A": END,  # feature not supported
    "0B": END,  # invalid transaction initiation
    "0F": END,  # locator exception
    "0L": END,  # invalid grantor
    "0P": END,  # invalid role
    "0Z": END,  # diagnostics exception
    "10": END,  # XQuery error
    "20": END,  # case not found
    "21": END,  # cardinality violation
    "22": END,  # data exception
    "23": END,  # integrity constraint violation
    "24": END,  # invalid cursor state
    "25": END,  # invalid transaction state
    "26": LOOK_FIRST,  # a prepared statement that a pooler gave to another session
    "27": LOOK_FIRST,  # triggered data change violation
    "28": AGAIN,  # a password that is being changed; at submission it is refused
    "2B": END,  # dependent privileges
    "2D": END,  # invalid transaction termination
    "2F": LOOK_FIRST,  # SQL routine, such as a trigger of the table
    "34": END,  # invalid cursor name
    "38": LOOK_FIRST,  # external routine: a trigger may ask another service
    "39": LOOK_FIRST,  # external routine invocation
    "3B": END,  # savepoint exception
    "3D": END,  # no such database
    "3F": END,  # no such schema
    "40": AGAIN,  # rolled back: serialization, deadlock, or completion unknown (40003)
    "42": END,  # syntax error, access rule, or something that is not there
    "44": END,  # WITH CHECK OPTION
    "53": AGAIN,  # no disk, no memory, no connection
    "54": END,  # larger than a row or a key may be
    "55": AGAIN,  # locked, or a prepared transaction that another session is ending (55000)
    "57": AGAIN,  # shut down, starting, cancelled
    "58": AGAIN,  # an error of the server's disk
    "72": AGAIN,  # snapshot too old
    "F0": AGAIN,  # a configuration file that is being written
    "HV": AGAIN,  # foreign data wrapper: another server
    "P0": END,  # PL/pgSQL: RAISE of a trigger
    "XX": LOOK_FIRST,  # internal error, such as "tuple concurrently updated"
}

STATES = {
    "23505": LOOK_FIRST,  # unique: the row, or our marker, of a COMMIT that was still under way
    "23P01": LOOK_FIRST,  # exclusion, likewise
    "25006": AGAIN,  # read-only: a standby, while another server takes over
    "25P02": LOOK_FIRST,  # the transaction has failed before
    "25P03": AGAIN,  # idle in transaction for too long
    "25P04": AGAIN,  # transaction timeout
    "42710": LOOK_FIRST,  # another session made the same object ...
    "42P04": LOOK_FIRST,  # database ...
    "42P05": LOOK_FIRST,  # prepared statement, as for class 26
    "42P06": LOOK_FIRST,  # schema ...
    "42P07": LOOK_FIRST,  # or table, in spite of IF NOT EXISTS
    "XX001": END,  # data corrupted
    "XX002": END,  # index corrupted
}

READ_ONLY = "25006"


def sqlstate_of(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    return state if isinstance(state, str) else None


def verdict_of(error: BaseException) -> Verdict:
    if not isinstance(error, DBAPIError):
        return END
    state = sqlstate_of(error)
    by_python = AGAIN if isinstance(error, OperationalError | InterfaceError) else END
    if state is None:
        return by_python
    return STATES.get(state) or CLASSES.get(state[:2], by_python)
