"""The store on etcd, for several servers."""
