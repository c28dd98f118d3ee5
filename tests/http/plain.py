"""Plain HTTP without certificates: reading them for each call would take most of a test's time."""

import functools

import httpx

get = functools.partial(httpx.get, verify=False)
post = functools.partial(httpx.post, verify=False)
stream = functools.partial(httpx.stream, verify=False)
