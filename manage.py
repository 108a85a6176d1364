"""The command line of the control plane, from a checkout: `python manage.py COMMAND`."""

from ftdash.__main__ import main

if __name__ == "__main__":
    main()
