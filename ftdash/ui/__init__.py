"""The pages of the dashboard, with fragments, figures and the event stream. Has no models."""
