"""Tests of skerry.node."""
