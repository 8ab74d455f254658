"""A datacenter as Kubernetes objects: Dynamo's graphs, our gateway, and who may talk to whom.

Documents are plain dictionaries; `kubectl apply -f` takes their JSON.
"""
