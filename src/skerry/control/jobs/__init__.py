"""Jobs: templates that are run to completion."""
