"""Export of traces by OTLP over HTTP."""
