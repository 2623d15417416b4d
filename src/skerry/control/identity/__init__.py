"""Tokens, certificates and enrolment: who a caller is."""
