/* Tests: what stands behind "is", and what select and reject take. */
#include <string.h>

#include "model/jinja_impl.h"

enum what {
	IS_DEFINED, IS_UNDEFINED, IS_NONE, IS_BOOLEAN, IS_TRUE, IS_FALSE, IS_INTEGER, IS_FLOAT, IS_NUMBER, IS_STRING,
	IS_MAPPING, IS_ITERABLE,
	IS_SEQUENCE, IS_CALLABLE, IS_ODD, IS_EVEN, IS_LOWER, IS_UPPER, IS_DIVISIBLE, IS_EQ, IS_NE, IS_LT, IS_LE, IS_GT,
	IS_GE, IS_IN, IS_SAME,
};

static const struct { const char *name; enum what what; } tests[] = {
	{ "defined", IS_DEFINED }, { "undefined", IS_UNDEFINED }, { "none", IS_NONE }, { "boolean", IS_BOOLEAN },
	{ "true", IS_TRUE },
	{ "false", IS_FALSE }, { "integer", IS_INTEGER }, { "float", IS_FLOAT }, { "number", IS_NUMBER },
	{ "string", IS_STRING },
	{ "mapping", IS_MAPPING }, { "iterable", IS_ITERABLE }, { "sequence", IS_SEQUENCE },
	{ "callable", IS_CALLABLE }, { "odd", IS_ODD },
	{ "even", IS_EVEN }, { "lower", IS_LOWER }, { "upper", IS_UPPER }, { "divisibleby", IS_DIVISIBLE },
	{ "eq", IS_EQ }, { "equalto", IS_EQ },
	{ "==", IS_EQ }, { "ne", IS_NE }, { "!=", IS_NE }, { "lt", IS_LT }, { "lessthan", IS_LT }, { "<", IS_LT },
	{ "le", IS_LE }, { "<=", IS_LE },
	{ "gt", IS_GT }, { "greaterthan", IS_GT }, { ">", IS_GT }, { "ge", IS_GE }, { ">=", IS_GE }, { "in", IS_IN },
	{ "sameas", IS_SAME },
};

static bool is_kind(enum what w, struct jval v)
{
	bool plain = v.kind == J_STR || v.kind == J_LIST || v.kind == J_DICT || v.kind == J_UNDEF;

	switch (w) {
	case IS_DEFINED:   return v.kind != J_UNDEF;
	case IS_UNDEFINED: return v.kind == J_UNDEF;
	case IS_NONE:      return v.kind == J_NONE;
	case IS_BOOLEAN:   return v.kind == J_BOOL;
	case IS_TRUE:      return v.kind == J_BOOL && v.b;
	case IS_FALSE:     return v.kind == J_BOOL && !v.b;
	case IS_INTEGER:   return v.kind == J_INT;
	case IS_FLOAT:     return v.kind == J_FLOAT;
	case IS_NUMBER:    return v.kind == J_INT || v.kind == J_FLOAT || v.kind == J_BOOL;
	case IS_STRING:    return v.kind == J_STR;
	case IS_MAPPING:   return v.kind == J_DICT;
	case IS_ITERABLE:  return plain || v.kind == J_LOOP;
	case IS_SEQUENCE:  return plain;
	default:           return v.kind == J_FUNC || v.kind == J_METHOD || v.kind == J_MACRO;
	}
}

static int is_number(struct jx *x, enum what w, struct jval v, struct jval arg, bool *out)
{
	int64_t i, by;

	if ((v.kind != J_INT && v.kind != J_BOOL) || (w == IS_DIVISIBLE && arg.kind != J_INT))
		return jx_fail(x, "odd, even, divisibleby: whole numbers are needed");
	i = v.kind == J_INT ? v.i : v.b;
	by = w == IS_DIVISIBLE ? arg.i : 2;
	if (!by)
		return jx_fail(x, "divisibleby: zero");
	*out = (by == -1 || i % by == 0) != (w == IS_ODD);
	return 0;
}

static int is_case(struct jx *x, enum what w, struct jval v, bool *out)
{
	static const struct jargs none;
	struct jval yes;
	struct jstr s;

	if (jv_text(x, v, &s) || jinja_str_method(x, s, jstr_of(w == IS_LOWER ? "islower" : "isupper"), &none, &yes))
		return x->err->code;
	*out = yes.b;
	return 0;
}

static int is_in(struct jx *x, struct jval v, struct jval arg, bool *out)
{
	const struct jlist *l;

	*out = false;
	if (arg.kind == J_STR && v.kind == J_STR) {
		*out = !v.s.n || (arg.s.n && memmem(arg.s.p, arg.s.n, v.s.p, v.s.n));
		return jx_step(x, arg.s.n / 64);
	}
	if (jv_iterate(x, arg, &l))
		return x->err->code;
	for (size_t i = 0; i < l->n && !*out; i++)
		if (jv_equal(x, l->v[i], v, out))
			return x->err->code;
	return 0;
}

static int is_compared(struct jx *x, enum what w, struct jval v, struct jval arg, bool *out)
{
	int order, rc;

	if (w == IS_EQ || w == IS_NE) {
		rc = jv_equal(x, v, arg, out);
		*out ^= w == IS_NE;
		return rc;
	}
	if (jv_order(x, v, arg, &order))
		return x->err->code;
	*out = w == IS_LT ? order < 0 : w == IS_LE ? order <= 0 : w == IS_GT ? order > 0 : order >= 0;
	return 0;
}

int jinja_test(struct jx *x, struct jstr name, struct jval v, const struct jargs *a, bool *out)
{
	struct jval arg = jv_none();
	size_t i = 0;
	enum what w;

	while (i < ARRAY_LEN(tests) && !jstr_is(name, tests[i].name))
		i++;
	if (i == ARRAY_LEN(tests))
		return jx_fail(x, "unknown test '%.*s'", (int)(name.n < 60 ? name.n : 60), name.p);
	w = tests[i].what;
	if (a->nkw || a->n != (w >= IS_DIVISIBLE))
		return jx_fail(x, "test '%s' takes %d arguments", tests[i].name, w >= IS_DIVISIBLE);
	if (a->n)
		arg = a->v[0];
	if (w <= IS_CALLABLE)
		*out = is_kind(w, v);
	else if (w == IS_ODD || w == IS_EVEN || w == IS_DIVISIBLE)
		return is_number(x, w, v, arg, out);
	else if (w == IS_LOWER || w == IS_UPPER)
		return is_case(x, w, v, out);
	else if (w == IS_IN)
		return is_in(x, v, arg, out);
	else if (w != IS_SAME)
		return is_compared(x, w, v, arg, out);
	else if (v.kind == J_LIST || v.kind == J_DICT)
		*out = v.kind == arg.kind && (v.kind == J_LIST ? v.list == arg.list : v.dict == arg.dict);
	else
		return v.kind == arg.kind ? jv_equal(x, v, arg, out) : (*out = false, 0);
	return 0;
}
