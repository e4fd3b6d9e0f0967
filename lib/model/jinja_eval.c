/* Evaluating expressions. */
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "model/jinja_impl.h"

/* ---- arithmetic, as Python does it ---- */

static int overflow(struct jx *x)
{
	return jx_fail(x, "number too large");
}

static int int_pow(struct jx *x, int64_t a, int64_t b, struct jval *out)
{
	int64_t r = 1;

	if (b < 0) {
		*out = jv_float(pow((double)a, (double)b));
		return 0;
	}
	for (; b; b--) {
		if (jx_step(x, 1))
			return x->err->code;
		if (__builtin_mul_overflow(r, a, &r))
			return overflow(x);
		if (a == 0 || a == 1)
			break;
	}
	*out = jv_int(r);
	return 0;
}

static int int_divide(struct jx *x, enum jop op, int64_t a, int64_t b, struct jval *out)
{
	int64_t q;

	if (!b)
		return jx_fail(x, "division by zero");
	if (op == OP_DIV) {
		*out = jv_float((double)a / (double)b);
		return 0;
	}
	if (b == -1) {
		if (__builtin_sub_overflow((int64_t)0, a, &q))
			return overflow(x);
		*out = jv_int(op == OP_MOD ? 0 : q);
		return 0;
	}
	q = a / b - (a % b != 0 && (a < 0) != (b < 0));
	*out = jv_int(op == OP_MOD ? a - q * b : q);
	return 0;
}

static int int_op(struct jx *x, enum jop op, int64_t a, int64_t b, struct jval *out)
{
	int64_t r;
	bool bad;

	switch (op) {
	case OP_ADD: bad = __builtin_add_overflow(a, b, &r); break;
	case OP_SUB: bad = __builtin_sub_overflow(a, b, &r); break;
	case OP_MUL: bad = __builtin_mul_overflow(a, b, &r); break;
	case OP_POW: return int_pow(x, a, b, out);
	default:     return int_divide(x, op, a, b, out);
	}
	*out = jv_int(r);
	return bad ? overflow(x) : 0;
}

static int float_op(struct jx *x, enum jop op, double a, double b, struct jval *out)
{
	double r;

	if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
		return jx_fail(x, "division by zero");
	switch (op) {
	case OP_ADD: r = a + b; break;
	case OP_SUB: r = a - b; break;
	case OP_MUL: r = a * b; break;
	case OP_DIV: r = a / b; break;
	case OP_POW: r = pow(a, b); break;
	case OP_FLOORDIV: r = floor(a / b); break;
	default:
		r = fmod(a, b);
		if (r != 0 && (r < 0) != (b < 0))
			r += b;
	}
	*out = jv_float(r);
	return 0;
}

static const char *op_text(enum jop op)
{
	static const char *const names[] = { "+", "-", "*", "/", "//", "%", "**" };

	return names[op];
}

/* "ab" * 3, [1] * 3 */
static int repeat(struct jx *x, struct jval v, int64_t times, struct jval *out)
{
	if (v.kind == J_LIST) {
		if (jv_list(x, v.list->tuple, out))
			return x->err->code;
		for (int64_t k = 0; k < times && v.list->n; k++)
			for (size_t i = 0; i < v.list->n; i++)
				if (jlist_add(x, out->list, v.list->v[i]))
					return x->err->code;
		return 0;
	}
	*out = jv_str("", 0);
	for (int64_t k = 0; k < times && v.s.n; k++)
		if (jx_step(x, 1) || jv_concat(x, out->s, v.s, out))
			return x->err->code;
	return 0;
}

static int binary_values(struct jx *x, enum jop op, struct jval a, struct jval b, struct jval *out)
{
	double fa, fb;

	if (a.kind == J_UNDEF || b.kind == J_UNDEF) {
		struct jstr name = a.kind == J_UNDEF ? a.s : b.s;
		return jx_fail(x, "'%.*s' is undefined", (int)name.n, name.p);
	}
	if (op == OP_ADD && a.kind == J_STR && b.kind == J_STR)
		return jv_concat(x, a.s, b.s, out);
	if (op == OP_ADD && a.kind == J_LIST && b.kind == J_LIST && a.list->tuple == b.list->tuple) {
		if (jv_list(x, a.list->tuple, out))
			return x->err->code;
		for (size_t i = 0; i < a.list->n + b.list->n; i++)
			if (jlist_add(x, out->list, i < a.list->n ? a.list->v[i] : b.list->v[i - a.list->n]))
				return x->err->code;
		return 0;
	}
	if (op == OP_MUL && (a.kind == J_STR || a.kind == J_LIST) && b.kind == J_INT)
		return repeat(x, a, b.i, out);
	if (op == OP_MUL && (b.kind == J_STR || b.kind == J_LIST) && a.kind == J_INT)
		return repeat(x, b, a.i, out);
	if (!jv_number(a, &fa) || !jv_number(b, &fb))
		return jx_fail(x, "'%s' between '%s' and '%s' is not possible", op_text(op), jv_type(a), jv_type(b));
	if (a.kind != J_FLOAT && b.kind != J_FLOAT)
		return int_op(x, op, a.kind == J_INT ? a.i : a.b, b.kind == J_INT ? b.i : b.b, out);
	return float_op(x, op, fa, fb, out);
}

/* ---- comparing ---- */

static int contains(struct jx *x, struct jval needle, struct jval in, bool *found)
{
	const struct jlist *l;
	struct jval dummy;

	*found = false;
	if (in.kind == J_STR) {
		if (needle.kind != J_STR)
			return jx_fail(x, "'in' a string needs a string, not '%s'", jv_type(needle));
		*found = !needle.s.n || (in.s.n && memmem(in.s.p, in.s.n, needle.s.p, needle.s.n));
		return jx_step(x, in.s.n / 64);
	}
	if (in.kind == J_DICT)
		return jdict_get(x, in.dict, needle, &dummy, found);
	if (jv_iterate(x, in, &l))
		return x->err->code;
	for (size_t i = 0; i < l->n && !*found; i++)
		if (jv_equal(x, l->v[i], needle, found))
			return x->err->code;
	return 0;
}

static int compare_values(struct jx *x, enum jop op, struct jval a, struct jval b, bool *yes)
{
	int order, rc;

	switch (op) {
	case OP_EQ: case OP_NE:
		rc = jv_equal(x, a, b, yes);
		*yes ^= op == OP_NE;
		return rc;
	case OP_IN: case OP_NOTIN:
		rc = contains(x, a, b, yes);
		*yes ^= op == OP_NOTIN;
		return rc;
	default:
		if (jv_order(x, a, b, &order))
			return x->err->code;
		*yes = op == OP_LT ? order < 0 : op == OP_LE ? order <= 0 : op == OP_GT ? order > 0 : order >= 0;
		return 0;
	}
}

static int eval_compare(struct jx *x, const struct jnode *n, struct jval *out)
{
	struct jval left, right;
	bool yes = true;

	if (jinja_eval(x, n->a, &left))
		return x->err->code;
	for (size_t i = 0; yes && i < n->n; i++) {
		if (jinja_eval(x, n->kids[i]->b, &right) || compare_values(x, n->kids[i]->op, left, right, &yes))
			return x->err->code;
		left = right;
	}
	*out = jv_bool(yes);
	return 0;
}

/* ---- collections, names ---- */

static int eval_list(struct jx *x, const struct jnode *n, struct jval *out)
{
	struct jval v;

	if (jv_list(x, n->type == N_TUPLE, out))
		return x->err->code;
	for (size_t i = 0; i < n->n; i++)
		if (jinja_eval(x, n->kids[i], &v) || jlist_add(x, out->list, v))
			return x->err->code;
	return 0;
}

static int eval_dict(struct jx *x, const struct jnode *n, struct jval *out)
{
	struct jval key, val;

	*out = (struct jval){ .kind = J_DICT, .dict = jx_alloc(x, sizeof(*out->dict)) };
	if (!out->dict)
		return x->err->code;
	for (size_t i = 0; i + 1 < n->n; i += 2) {
		if (jinja_eval(x, n->kids[i], &key) || jinja_eval(x, n->kids[i + 1], &val))
			return x->err->code;
		if (key.kind > J_STR)
			return jx_fail(x, "'%s' cannot be a key", jv_type(key));
		if (jdict_set(x, out->dict, key, val))
			return x->err->code;
	}
	return 0;
}

static int eval_name(struct jx *x, const struct jnode *n, struct jval *out)
{
	static const char *const functions[] = { "range", "namespace", "dict", "raise_exception" };
	bool found = false;

	for (struct jscope *s = x->scope; s && !found; s = s->up)
		if (jx_step(x, 1) || jdict_get(x, &s->vars, n->val, out, &found))
			return x->err->code;
	if (found)
		return 0;
	if (jstr_is(n->val.s, "loop") && x->loop) {
		*out = (struct jval){ .kind = J_LOOP, .loop = x->loop };
		return 0;
	}
	for (size_t i = 0; i < ARRAY_LEN(functions); i++)
		if (jstr_is(n->val.s, functions[i])) {
			*out = (struct jval){ .kind = J_FUNC, .s = n->val.s };
			return 0;
		}
	*out = jv_undef(n->val.s);
	return 0;
}

static int eval_slice(struct jx *x, const struct jnode *n, struct jval *out)
{
	const struct jnode *part[3] = { n->a, n->b, n->c };

	*out = (struct jval){ .kind = J_SLICE, .slice = jx_alloc(x, 3 * sizeof(*out->slice)) };
	if (!out->slice)
		return x->err->code;
	for (size_t i = 0; i < 3; i++) {
		struct jval v;
		if (jinja_eval(x, part[i], &v))
			return x->err->code;
		if (v.kind != J_NONE && v.kind != J_INT)
			return jx_fail(x, "slice with '%s': whole numbers are needed", jv_type(v));
		out->slice[i] = v;
	}
	return 0;
}

/* ---- calls, filters, tests ---- */

static int eval_args(struct jx *x, const struct jnode *n, struct jargs *a)
{
	memset(a, 0, sizeof(*a));
	a->v = jx_alloc(x, n->n * sizeof(*a->v));
	a->kw = jx_alloc(x, n->nkw * sizeof(*a->kw));
	if (!a->v || !a->kw)
		return x->err->code;
	for (; a->n < n->n; a->n++)
		if (jinja_eval(x, n->kids[a->n], &a->v[a->n]))
			return x->err->code;
	for (; a->nkw < n->nkw; a->nkw++) {
		a->kw[a->nkw].name = n->kw[a->nkw].name;
		if (jinja_eval(x, n->kw[a->nkw].val, &a->kw[a->nkw].val))
			return x->err->code;
	}
	return 0;
}

static int eval_applied(struct jx *x, const struct jnode *n, struct jval *out)
{
	struct jval v;
	struct jargs a;
	bool yes;

	if (jinja_eval(x, n->a, &v) || eval_args(x, n, &a))
		return x->err->code;
	x->line = n->line;
	if (n->type == N_CALL)
		return jinja_call(x, v, &a, out);
	if (n->type == N_FILTER)
		return jinja_filter(x, n->val.s, v, &a, out);
	if (jinja_test(x, n->val.s, v, &a, &yes))
		return x->err->code;
	*out = jv_bool(yes);
	return 0;
}

static int eval_sign(struct jx *x, const struct jnode *n, struct jval *out)
{
	double f;

	if (jinja_eval(x, n->a, out))
		return x->err->code;
	if (!jv_number(*out, &f))
		return jx_fail(x, "a sign in front of '%s' is not possible", jv_type(*out));
	if (out->kind == J_BOOL)
		*out = jv_int(out->b);
	if (n->type == N_NEG && out->kind == J_FLOAT)
		out->f = -out->f;
	else if (n->type == N_NEG && __builtin_sub_overflow((int64_t)0, out->i, &out->i))
		return overflow(x);
	return 0;
}

static int eval_concat(struct jx *x, const struct jnode *n, struct jval *out)
{
	struct jval a, b;
	struct jstr sa, sb;

	if (jinja_eval(x, n->a, &a) || jv_text(x, a, &sa) || jinja_eval(x, n->b, &b) || jv_text(x, b, &sb))
		return x->err->code;
	return jv_concat(x, sa, sb, out);
}

static int eval_two(struct jx *x, const struct jnode *n, struct jval *out)
{
	struct jval b;

	if (jinja_eval(x, n->a, out))
		return x->err->code;
	switch (n->type) {
	case N_AND:  return jv_true(*out) ? jinja_eval(x, n->b, out) : 0;
	case N_OR:   return jv_true(*out) ? 0 : jinja_eval(x, n->b, out);
	case N_NOT:
		*out = jv_bool(!jv_true(*out));
		return 0;
	case N_ATTR:
		x->line = n->line;
		return jinja_attr(x, *out, n->val.s, out);
	default: {
		struct jval a = *out;
		if (jinja_eval(x, n->b, &b))
			return x->err->code;
		x->line = n->line;
		return n->type == N_ITEM ? jinja_item(x, a, b, out) : binary_values(x, n->op, a, b, out);
	}
	}
}

static int eval_cond(struct jx *x, const struct jnode *n, struct jval *out)
{
	struct jval test;

	if (jinja_eval(x, n->b, &test))
		return x->err->code;
	if (jv_true(test))
		return jinja_eval(x, n->a, out);
	if (n->c)
		return jinja_eval(x, n->c, out);
	*out = jv_undef(jstr_of("the 'if' without 'else'"));
	return 0;
}

int jinja_eval(struct jx *x, const struct jnode *n, struct jval *out)
{
	int rc = jx_enter(x);

	if (!rc) {
		x->line = n->line;
		switch (n->type) {
		case N_CONST:   *out = n->val; break;
		case N_NAME:    rc = eval_name(x, n, out); break;
		case N_LIST: case N_TUPLE: rc = eval_list(x, n, out); break;
		case N_DICT:    rc = eval_dict(x, n, out); break;
		case N_SLICE:   rc = eval_slice(x, n, out); break;
		case N_CALL: case N_FILTER: case N_TEST: rc = eval_applied(x, n, out); break;
		case N_NEG: case N_POS: rc = eval_sign(x, n, out); break;
		case N_CONCAT:  rc = eval_concat(x, n, out); break;
		case N_COMPARE: rc = eval_compare(x, n, out); break;
		case N_COND:    rc = eval_cond(x, n, out); break;
		default:        rc = eval_two(x, n, out);
		}
	}
	x->depth--;
	return rc;
}
