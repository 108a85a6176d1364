"""The documentation as a site: generated reference pages, the MkDocs build, and `/docs/`."""
