"""What `/metrics` shows of the cloud: nodes, instances, services, jobs, certificates and the store."""
