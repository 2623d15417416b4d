"""Durable state behind one protocol: `protocol` is the contract; `local`, `sqlite` and `etcd` keep it."""
