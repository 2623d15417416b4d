"""The node's agent: joins a cloud, keeps a session with its control plane, carries out its orders."""
