"""A view of strawberry-graphql that charges a request for each call of the field `login`. See decorator.md."""

from django.core.exceptions import SuspiciousOperation
from graphql import FieldNode, FragmentDefinitionNode, FragmentSpreadNode, GraphQLError, OperationDefinitionNode, parse
from strawberry.django.views import GraphQLView

from django_ratelimiter import limiter
from django_ratelimiter.decorators import Ratelimited


def calls_of(field, query):
    """Return how often the operations of a query call a field; 0 for a query that the view will reject."""
    counts = {}  # by fragment

    def within(node):
        found = 0
        for each in node.selection_set.selections if node.selection_set else ():
            if isinstance(each, FragmentSpreadNode):
                name = each.name.value
                if name in fragments and name not in counts:
                    counts[name] = 0  # a fragment that contains itself is invalid
                    counts[name] = within(fragments[name])
                found += counts.get(name, 0)
            else:
                found += (isinstance(each, FieldNode) and each.name.value == field) + within(each)
        return found

    try:
        nodes = parse(query or "", no_location=True).definitions
        fragments = {node.name.value: node for node in nodes if isinstance(node, FragmentDefinitionNode)}
        return sum(within(node) for node in nodes if isinstance(node, OperationDefinitionNode))
    except GraphQLError:
        return 0
    except RecursionError:
        raise SuspiciousOperation("The query is nested too deeply.") from None


class LimitedView(GraphQLView):
    def parse_http_body(self, request):
        data = super().parse_http_body(request)
        operations = data if isinstance(data, list) else [data]
        calls = sum(calls_of("login", each.query) for each in operations)
        if calls:
            decision = limiter.check(self.request, scope="logins", cost=calls)
            if not decision.allowed:
                raise Ratelimited(decision)
        return data
