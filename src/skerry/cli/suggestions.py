"""Suggestions for a word that is no command: by its meaning in Docker, Kubernetes and Nomad, or by spelling.

Imported only after a command was not found. `MEANINGS` has the words that people bring along, each with the
commands that do the same here; a test checks that these exist.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final, NamedTuple


class Suggestion(NamedTuple):
    """A command line, and what it does."""

    command: str
    summary: str


_INSTANCES: Final = Suggestion("skerry get instances", "list instances")
_CONTAINERS: Final = Suggestion("skerry container list", "list containers of this machine")
_RUN: Final = Suggestion("skerry run IMAGE", "run an image on a node with enough resources")
_SERVICE: Final = Suggestion("skerry service create NAME IMAGE", "run an image in several copies")
_SCALE: Final = Suggestion("skerry service scale NAME N", "change the number of copies")
_UPDATE: Final = Suggestion("skerry service update NAME", "change a service, one copy after the other")
_ROLLOUT: Final = Suggestion("skerry service describe NAME", "show a service and its rollout")
_ROLLBACK: Final = Suggestion("skerry service rollback NAME", "go back to the revision before")
_STOP: Final = Suggestion("skerry stop INSTANCE", "stop an instance")
_START: Final = Suggestion("skerry start INSTANCE", "start a stopped instance")
_DELETE: Final = Suggestion("skerry delete instance NAME", "stop and delete an instance")
_CONTAINER_STOP: Final = Suggestion("skerry container stop NAME", "stop a container of this machine")
_CONTAINER_REMOVE: Final = Suggestion("skerry container remove NAME", "remove a container of this machine")
_IMAGES: Final = Suggestion("skerry image list", "list images of this machine")
_PULL: Final = Suggestion("skerry image pull IMAGE", "pull an image to this machine")
_IMAGE_REMOVE: Final = Suggestion("skerry image remove IMAGE", "remove an image of this machine")
_LOGIN: Final = Suggestion("skerry registry login HOST", "log in to a private registry")
_NODES: Final = Suggestion("skerry get nodes", "list nodes")
_DESCRIBE: Final = Suggestion("skerry describe instance NAME", "show the details of an instance")
_LOGS: Final = Suggestion("skerry logs INSTANCE", "show the output of an instance")
_EXEC: Final = Suggestion("skerry exec -it INSTANCE sh", "run a command in an instance")
_APPLY: Final = Suggestion("skerry apply -f FILE", "create and update objects from a file")
_FUNCTIONS: Final = Suggestion("skerry fn deploy FILE", "deploy a function")
_INVOKE: Final = Suggestion("skerry fn invoke FUNCTION", "call a function")
_TOP: Final = Suggestion("skerry top", "show usage, live")
_STATUS: Final = Suggestion("skerry status", "show whether the server is ready, and who you are to it")
_CONSOLE: Final = Suggestion("skerry console", "open the web console")
_SAMPLE: Final = Suggestion("skerry run --name web $(skerry image sample)", "run an image that is made here")
_DEMO: Final = Suggestion("skerry demo", "show what Skerry does")
_PRUNE: Final = Suggestion("skerry image prune", "remove data that no image and no container uses")
_LOAD: Final = Suggestion("skerry image pull oci-archive:FILE", "take an image from a file")
_FOLLOW: Final = Suggestion("skerry logs -f INSTANCE", "follow the output of an instance")
_AUTOSCALE: Final = Suggestion("skerry service autoscale NAME", "scale a service by its load")
_NODE: Final = Suggestion("skerry describe node NAME", "show a node, and its devices")
_BUY: Final = Suggestion("skerry market buy", "buy capacity from another cloud")
_SELL: Final = Suggestion("skerry market sell", "offer capacity to other clouds")
_LEDGER: Final = Suggestion("skerry market ledger", "show what was sold")
_CONTRACTS: Final = Suggestion("skerry market contracts", "show what was bought and sold, and for how much")
_STOP_SKERRY: Final = Suggestion("Ctrl-C in the terminal of 'skerry up'", "stop Skerry")
_DOCTOR: Final = Suggestion("skerry doctor", "find what is wrong, and how to fix it")
_EVENTS: Final = Suggestion("skerry events -f", "follow events")
_EXPLAIN: Final = Suggestion("skerry explain INSTANCE", "explain a placement")
_DRAIN: Final = Suggestion("skerry node drain NODE", "move all instances off a node")
_CORDON: Final = Suggestion("skerry node cordon NODE", "give a node no new instances")
_UNCORDON: Final = Suggestion("skerry node uncordon NODE", "give it instances again")
_LABEL: Final = Suggestion("skerry node label NODE LABEL=VALUE", "set labels of a node")
_INVITE: Final = Suggestion("skerry token create --role node", "create an invitation for a machine")
_JOIN: Final = Suggestion("skerry node --join INVITATION", "join this machine to a server")
_LEAVE: Final = Suggestion("skerry node leave", "take this machine out of its cloud")
_UP: Final = Suggestion("skerry up", "start everything on this machine")
_SERVER: Final = Suggestion("skerry server", "start the control plane alone")
_SECRETS: Final = Suggestion("skerry secret list", "list secrets")
_CONFIGS: Final = Suggestion("skerry config list", "list configs")
_VOLUMES: Final = Suggestion("skerry volume list", "list volumes")
_SNAPSHOT: Final = Suggestion("skerry volume snapshot VOLUME", "take a snapshot of a volume")
_ROUTES: Final = Suggestion("skerry route add HOST --to service/NAME", "publish a service under a host name")
_PUBLISH: Final = Suggestion("skerry run -p 8080:80 IMAGE", "publish a port of an instance")
_NAMESPACES: Final = Suggestion("skerry namespace list", "list namespaces")
_QUOTA: Final = Suggestion("skerry namespace describe NAME", "show a namespace and its quota")
_POLICY: Final = Suggestion("skerry namespace policy NAME", "isolate a namespace, limit what it reaches")
_TOKENS: Final = Suggestion("skerry token list", "list access tokens")
_TOKEN: Final = Suggestion("skerry token create --role deployer", "create an access token")
_CERTIFICATES: Final = Suggestion("skerry certificate list", "list certificates")
_TLS: Final = Suggestion("skerry tls list", "list TLS certificates of routes")
_CONTEXTS: Final = Suggestion("skerry context list", "list contexts")
_CONTEXT_USE: Final = Suggestion("skerry context use NAME", "choose the server of commands")
_CONTEXT_ADD: Final = Suggestion("skerry context add NAME --url URL", "name a server")
_JOBS: Final = Suggestion("skerry job list", "list jobs")
_JOB_RUN: Final = Suggestion("skerry job run IMAGE", "run an image to completion")
_SCHEDULES: Final = Suggestion("skerry schedule list", "list schedules")
_MARKET: Final = Suggestion("skerry market", "buy capacity, and sell your own")
_COMPLETION: Final = Suggestion("skerry completion bash", "print the completion script of a shell")
_VERSION: Final = Suggestion("skerry version", "show the version")
_CELL_RUN: Final = Suggestion("skerry cell run -- COMMAND", "run a program in a cell of this machine")
_CELLS: Final = Suggestion("skerry cell list", "list cells of this machine")
_DNS: Final = Suggestion("skerry dns lookup NAME", "look up a name as containers do")

MEANINGS: Final[dict[str, tuple[Suggestion, ...]]] = {
    # Docker
    "ps": (_INSTANCES, _CONTAINERS),
    "ls": (_INSTANCES, _CONTAINERS),
    "list": (_INSTANCES, _NODES),
    "images": (_IMAGES,),
    "pull": (_PULL,),
    "rmi": (_IMAGE_REMOVE,),
    "login": (_LOGIN, _CONTEXT_ADD),
    "logout": (Suggestion("skerry registry logout HOST", "log out of a registry"),),
    "rm": (_DELETE, _CONTAINER_REMOVE),
    "remove": (_DELETE, _CONTAINER_REMOVE),
    "destroy": (_DELETE,),
    "kill": (_STOP, _CONTAINER_STOP),
    "restart": (
        Suggestion("skerry stop INSTANCE && skerry start INSTANCE", "restart an instance"),
        _UPDATE,
    ),
    "pause": (Suggestion("skerry service pause NAME", "pause a rollout"), _STOP),
    "unpause": (Suggestion("skerry service resume NAME", "resume a rollout"), _START),
    "inspect": (_DESCRIBE,),
    "stats": (_TOP,),
    "attach": (_FOLLOW, _EXEC),
    "shell": (_EXEC,),
    "sh": (_EXEC,),
    "ssh": (_EXEC,),
    "info": (_STATUS,),
    "port": (_INSTANCES,),
    "compose": (_APPLY,),
    "stack": (_APPLY,),
    "network": (_POLICY, Suggestion("skerry mesh status", "show how nodes reach each other")),
    "volumes": (_VOLUMES,),
    "containers": (_CONTAINERS,),
    "build": (_FUNCTIONS, _PULL),
    "push": (_LOGIN,),
    "swarm": (_INVITE, _JOIN),
    "system": (_STATUS, _DOCTOR),
    "prune": (_PRUNE,),
    "gc": (_PRUNE,),
    "purge": (_PRUNE, _DELETE),
    "df": (_IMAGES, _VOLUMES),
    "du": (_IMAGES, _VOLUMES),
    "load": (_LOAD,),
    "import": (_LOAD,),
    "save": (_IMAGES,),
    "export": (_IMAGES,),
    "history": (Suggestion("skerry service history NAME", "list the revisions of a service"), _EVENTS),
    "cp": (Suggestion("skerry exec INSTANCE cat FILE", "print a file of an instance"), _VOLUMES),
    "docker": (_RUN, _INSTANCES),
    # Kubernetes
    "create": (_RUN, _SERVICE, _APPLY),
    "deploy": (_FUNCTIONS, _SERVICE, _APPLY),
    "deployment": (_SERVICE,),
    "deployments": (Suggestion("skerry service list", "list services"),),
    "services": (Suggestion("skerry service list", "list services"),),
    "svc": (Suggestion("skerry service list", "list services"),),
    "pod": (_INSTANCES,),
    "pods": (_INSTANCES,),
    "po": (_INSTANCES,),
    "instance": (_INSTANCES, _DESCRIBE),
    "instances": (_INSTANCES,),
    "nodes": (_NODES,),
    "workload": (Suggestion("skerry get workloads", "list workloads"),),
    "workloads": (Suggestion("skerry get workloads", "list workloads"),),
    "scale": (_SCALE,),
    "autoscale": (_AUTOSCALE,),
    "hpa": (_AUTOSCALE,),
    "replicas": (_SCALE,),
    "pdb": (_UPDATE,),
    "rollout": (_ROLLOUT, _ROLLBACK),
    "rollback": (_ROLLBACK,),
    "undo": (_ROLLBACK,),
    "promote": (Suggestion("skerry service promote NAME", "finish a paused rollout"),),
    "update": (_UPDATE,),
    "edit": (_UPDATE, _APPLY),
    "patch": (_UPDATE, _APPLY),
    "replace": (_APPLY,),
    "set": (_UPDATE,),
    "expose": (_ROUTES, _PUBLISH),
    "port-forward": (_PUBLISH,),
    "proxy": (_ROUTES,),
    "lb": (_ROUTES,),
    "loadbalancer": (_ROUTES,),
    "firewall": (_POLICY,),
    "ingress": (_ROUTES,),
    "routes": (Suggestion("skerry route list", "list routes"),),
    "drain": (_DRAIN,),
    "cordon": (_CORDON,),
    "uncordon": (_UNCORDON,),
    "taint": (_CORDON, _LABEL),
    "label": (_LABEL,),
    "join": (_INVITE, _JOIN),
    "init": (_UP, _SERVER),
    "log": (_LOGS,),
    "tail": (_FOLLOW,),
    "annotate": (_LABEL,),
    "kubectl": (_INSTANCES, _APPLY),
    "helm": (_APPLY,),
    "kustomize": (_APPLY,),
    "upgrade": (_UPDATE,),
    "api-resources": (Suggestion("skerry get --help", "list what can be listed"),),
    "cluster": (_NODES, _STATUS),
    "dashboard": (_CONSOLE,),
    "ui": (_CONSOLE,),
    "web": (_CONSOLE,),
    "browser": (_CONSOLE,),
    "open": (_CONSOLE,),
    "metrics": (_TOP,),
    "user": (_TOKEN, _TOKENS),
    "users": (_TOKEN, _TOKENS),
    "role": (_TOKEN, _TOKENS),
    "rbac": (_TOKEN, _TOKENS),
    "sa": (_TOKEN, _TOKENS),
    "env": (_CONFIGS,),
    "wait": (Suggestion("skerry get instances -w", "watch instances"),),
    "watch": (Suggestion("skerry get instances -w", "watch instances"), _TOP),
    "diff": (Suggestion("skerry apply -f FILE --dry-run", "show what would change"),),
    "auth": (_STATUS, _TOKENS),
    "whoami": (_STATUS,),
    "cluster-info": (_STATUS,),
    "debug": (_DOCTOR, _EXEC),
    "secrets": (_SECRETS,),
    "configmap": (_CONFIGS,),
    "cm": (_CONFIGS,),
    "ns": (_NAMESPACES,),
    "namespaces": (_NAMESPACES,),
    "quota": (_QUOTA,),
    "policy": (_POLICY,),
    "pvc": (_VOLUMES,),
    "cronjob": (_SCHEDULES,),
    "cron": (_SCHEDULES,),
    "jobs": (_JOBS,),
    "kubeconfig": (_CONTEXTS, _CONTEXT_USE),
    "contexts": (_CONTEXTS, _CONTEXT_USE),
    "use": (_CONTEXT_USE,),
    "certificates": (_CERTIFICATES, _TLS),
    "cert": (_TLS, _CERTIFICATES),
    # Nomad
    "alloc": (_INSTANCES, _DESCRIBE),
    "allocs": (_INSTANCES,),
    "agent": (_UP, _SERVER, _JOIN),
    "eval": (_EXPLAIN,),
    "nomad": (_INSTANCES, _APPLY),
    "operator": (_STATUS, _DOCTOR),
    "raft": (_STATUS,),
    "plan": (Suggestion("skerry apply -f FILE --dry-run", "show what would change"),),
    "var": (_SECRETS, _CONFIGS),
    "acl": (_TOKENS, _TOKEN),
    "server-members": (_STATUS,),
    "monitor": (_TOP, _EVENTS),
    "dispatch": (_JOB_RUN,),
    "revert": (_ROLLBACK,),
    # Functions, volumes, the machine, and other words
    "function": (Suggestion("skerry fn list", "list functions"), _FUNCTIONS),
    "functions": (Suggestion("skerry fn list", "list functions"), _FUNCTIONS),
    "invoke": (_INVOKE,),
    "call": (_INVOKE,),
    "lambda": (_FUNCTIONS,),
    "snapshot": (_SNAPSHOT,),
    "buy": (_BUY, _MARKET),
    "borrow": (_BUY,),
    "sell": (_SELL, _MARKET),
    "lend": (_SELL,),
    "share": (_SELL,),
    "price": (_CONTRACTS, _MARKET),
    "cost": (_CONTRACTS, _LEDGER),
    "bill": (_CONTRACTS, _LEDGER),
    "gpu": (_NODE,),
    "device": (_NODE,),
    "devices": (_NODE,),
    "sample": (_SAMPLE,),
    "hello": (_SAMPLE, _DEMO),
    "tutorial": (_SAMPLE, _DEMO),
    "example": (_SAMPLE, _DEMO),
    "ping": (_STATUS, _DNS),
    "about": (_STATUS,),
    "test": (_DOCTOR,),
    "peers": (Suggestion("skerry market peers", "clouds that this one buys from"),),
    "htop": (_TOP,),
    "usage": (_TOP,),
    "check": (_DOCTOR,),
    "health": (_STATUS, _DOCTOR),
    "troubleshoot": (_DOCTOR,),
    "why": (_EXPLAIN, _DOCTOR),
    "down": (_STOP_SKERRY, _LEAVE),
    "shutdown": (_STOP_SKERRY, _LEAVE),
    "quit": (_STOP_SKERRY,),
    "exit": (_STOP_SKERRY,),
    "reset": (_LEAVE,),
    "serve": (_UP, _SERVER),
    "leave": (_LEAVE,),
    "invite": (_INVITE,),
    "daemon": (_UP,),
    "launch": (_RUN,),
    "spawn": (_RUN, _CELL_RUN),
    "cells": (_CELLS,),
    "nslookup": (_DNS,),
    "dig": (_DNS,),
    "tokens": (_TOKENS,),
    "completions": (_COMPLETION,),
    "autocomplete": (_COMPLETION,),
    "help": (Suggestion("skerry --help", "list all commands"),),
    "ver": (_VERSION,),
}


_ALIKE: Final = 0.7  # as "lgos" and "logs"; less alike are other words


def suggest(word: str, commands: Iterable[str], prefix: str = "skerry") -> str:
    """What to write instead of `word`, in a sentence; `commands` are those that exist below `prefix`."""
    known = list(commands)
    lowered = word.lower()
    meant = MEANINGS.get(lowered, ()) if prefix == "skerry" else ()
    if not meant:
        close = difflib.get_close_matches(lowered, known, n=3, cutoff=_ALIKE)
        if close:
            return f"did you mean {_either([f'{prefix} {name}' for name in close])}?"
        if prefix == "skerry":
            nearest = difflib.get_close_matches(lowered, MEANINGS, n=1, cutoff=0.8)
            meant = MEANINGS[nearest[0]] if nearest else ()
    if not meant:
        return f"see '{prefix} --help'."
    if len(meant) == 1:
        return f"did you mean '{meant[0].command}' ({meant[0].summary})?"
    width = max(len(each.command) for each in meant)
    lines = "\n".join(f"  {each.command:<{width}}  {each.summary}" for each in meant)
    return f"did you mean one of these?\n\n{lines}"


# Kinds of `get`, `describe` and `delete`, by their names elsewhere.
_KINDS: Final = {
    "instances": ("pod", "pods", "po", "container", "containers", "alloc", "allocs", "task", "tasks"),
    "services": ("deployment", "deployments", "deploy", "svc", "statefulset", "replicaset", "rs", "sts"),
    "nodes": ("no", "machine", "machines", "host", "hosts", "client", "clients"),
    "volumes": ("pv", "pvc", "persistentvolumeclaims"),
}
_OTHER_KINDS: Final = {
    "skerry job": ("job", "jobs", "batch"),
    "skerry schedule": ("schedule", "schedules", "cronjob", "cronjobs", "cron"),
    "skerry fn": ("function", "functions", "fn"),
    "skerry secret": ("secret", "secrets"),
    "skerry config": ("config", "configs", "configmap", "configmaps", "cm"),
    "skerry route": ("route", "routes", "ingress", "ingresses", "ing"),
    "skerry namespace": ("namespace", "namespaces", "ns"),
    "skerry token": ("token", "tokens", "sa", "serviceaccounts"),
    "skerry image": ("image", "images"),
    "skerry certificate": ("certificate", "certificates"),
    "skerry context": ("context", "contexts"),
}


def suggest_kind(word: str, kinds: Iterable[str], path: str) -> str:
    """What to write instead of `path` and a kind that does not exist; empty if that is not known."""
    lowered = word.lower()
    for kind, words in _KINDS.items():
        if lowered in words:
            return f"did you mean '{path} {kind}'?"
    for group, words in _OTHER_KINDS.items():
        if lowered in words:
            return f"did you mean '{group} list'? All of its commands: '{group} --help'."
    if lowered in ("all", "everything"):
        return "did you mean 'skerry top --once'?"
    if lowered in ("event", "events", "ev"):
        return "did you mean 'skerry events'?"
    close = difflib.get_close_matches(lowered, list(kinds), n=1, cutoff=_ALIKE)
    return f"did you mean '{path} {close[0]}'?" if close else ""


def _either(words: list[str]) -> str:
    *most, last = (f"'{word}'" for word in words)
    return f"{', '.join(most)} or {last}" if most else last
