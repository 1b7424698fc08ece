"""The time that 10,000 networks in the access list add to a request: `AccessList.lookup`.

Run: python -m benchmarks.access. Prints microseconds of processor time per lookup: medians of rounds over 20,000
addresses, all different.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from random import Random
from statistics import median
from time import process_time

from django_ratelimiter.values.access import AccessList, AccessRecord

NETWORKS, CALLS, ROUNDS = 10_000, 20_000, 15


def networks(random: Random, bits: int) -> list[AccessRecord]:
    """Return networks of all lengths, many of them inside others."""
    made: set[str] = set()
    address = IPv4Address if bits == 32 else IPv6Address
    while len(made) < NETWORKS:
        length = random.randint(8, bits)
        made.add(f"{address(random.getrandbits(length) << (bits - length))}/{length}")
    return [AccessRecord(random.choice(["allow", "deny"]), "ip", each) for each in sorted(made)]


def microseconds(access: AccessList, addresses: Sequence[str]) -> float:
    """Return the mean of one round."""
    begin = process_time()
    for address in addresses:
        access.lookup(address, "42", None)
    return (process_time() - begin) / len(addresses) * 1e6


def main() -> None:
    """Measure and print."""
    random = Random(1)
    for name, bits in (("IPv4", 32), ("IPv6", 128)):
        begin = process_time()
        access = AccessList(networks(random, bits))
        built = process_time() - begin
        address = IPv4Address if bits == 32 else IPv6Address
        addresses = [str(address(random.getrandbits(bits))) for _ in range(CALLS)]
        rounds = [microseconds(access, addresses) for _ in range(ROUNDS)]
        print(f"lookup among {NETWORKS:,} {name} networks: {median(rounds):.2f} us; made ready in {built * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
