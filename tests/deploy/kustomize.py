"""What kubectl kustomize makes of a folder of deploy/kubernetes, as far as these folders use it: resources, and patches
merged by the API's rules. kubernetes_test.py compares it with the real one where there is one."""

import os
import subprocess

import yaml

FOLDER = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "kubernetes"))
# By which field the elements of a list are matched; every other list is replaced as a whole.
MERGE_KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath", "ports": "containerPort"}


def documents(path):
    with open(path, encoding="utf-8") as f:
        return [document for document in yaml.safe_load_all(f) if document]


def name_of(thing):
    return (thing["apiVersion"], thing["kind"], thing["metadata"]["name"])


def merged(base, patch):
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merged(result.get(key, {}), value)
        elif key in MERGE_KEYS and isinstance(value, list):
            result[key] = merged_list(result.get(key, []), value, MERGE_KEYS[key])
        else:
            result[key] = value
    return result


def merged_list(base, patch, key):
    result = {element[key]: element for element in base}
    for element in patch:
        if element.get("$patch") == "delete":
            del result[element[key]]
        else:
            result[element[key]] = merged(result.get(element[key], {}), element)
    return list(result.values())


def build(folder):
    """The objects of a folder that has a kustomization.yaml."""
    folder = os.path.join(FOLDER, folder)
    (plan,) = documents(os.path.join(folder, "kustomization.yaml"))
    unknown = set(plan) - {"apiVersion", "kind", "resources", "patches"}
    assert not unknown, unknown
    things = {}
    for resource in plan["resources"]:
        path = os.path.normpath(os.path.join(folder, resource))
        things.update((name_of(thing), thing) for thing in (build(path) if os.path.isdir(path) else documents(path)))
    for patch in plan.get("patches", []):
        (change,) = documents(os.path.join(folder, patch["path"]))
        if change.pop("$patch", "") == "delete":
            del things[name_of(change)]
        else:
            things[name_of(change)] = merged(things[name_of(change)], change)
    return list(things.values())


def built_by_kubectl(folder):
    """The same by kubectl; None where it is not there, or too old for these files."""
    try:
        done = subprocess.run(["kubectl", "kustomize", os.path.join(FOLDER, folder)], capture_output=True, text=True,
                              timeout=60, check=False)
    except OSError:
        return None
    return [thing for thing in yaml.safe_load_all(done.stdout) if thing] if done.returncode == 0 else None
