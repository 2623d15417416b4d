"""Durable state behind one protocol: `protocol` is the contract; `memory`, `sqlite` and `etcd` keep it."""
