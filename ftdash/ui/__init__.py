"""The doors of the dashboard: pages, fragments, figures, the event stream. Holds no models."""
