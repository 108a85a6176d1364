"""Does the rounds of a worker and of the projector, until it is killed.

`python -m tests.processes.upgrade_worker`
"""

import threading

import django

ROUND_S = 0.2


def main() -> None:
    django.setup()
    from ftdash.projection.projector import Projector
    from ftdash.supervision import drivers
    from ftdash.upgrades import services

    projector, never = Projector(), threading.Event()
    while not never.wait(ROUND_S):
        projector.run_once()
        drivers.reconcile()
        services.reconcile()


if __name__ == "__main__":
    main()
