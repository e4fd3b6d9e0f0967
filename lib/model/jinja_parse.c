/* Expressions of the Jinja language: primaries, and what stands directly behind them. */
#include <string.h>

#include "model/jinja_impl.h"

/* ---- tokens and nodes ---- */

const struct jtoken *jtok(const struct jx *x, size_t ahead)
{
	size_t i = x->at + ahead;

	return &x->tokens[i < x->ntokens ? i : x->ntokens - 1];
}

const struct jtoken *jnext(struct jx *x)
{
	const struct jtoken *t = jtok(x, 0);

	x->line = t->line;
	x->at++;
	return t;
}

bool jtok_name(const struct jx *x, size_t ahead, const char *name)
{
	const struct jtoken *t = jtok(x, ahead);

	return t->type == T_NAME && jstr_is(t->val.s, name);
}

bool jtok_op(const struct jx *x, enum jop op)
{
	const struct jtoken *t = jtok(x, 0);

	return t->type == T_OP && t->op == op;
}

bool jskip_op(struct jx *x, enum jop op)
{
	if (!jtok_op(x, op))
		return false;
	jnext(x);
	return true;
}

int junexpected(struct jx *x, const char *want)
{
	static const char *const names[] = { "text", "'{%'", "'%}'", "'{{'", "'}}'" };
	const struct jtoken *t = jtok(x, 0);

	x->line = t->line;
	if (t->type == T_EOF)
		return jx_fail(x, "the template ends where %s is expected", want);
	if (t->type == T_INT || t->type == T_FLOAT)
		return jx_fail(x, "number where %s is expected", want);
	if (t->type < T_NAME)
		return jx_fail(x, "%s where %s is expected", names[t->type], want);
	return jx_fail(x, "'%.*s' where %s is expected", (int)(t->val.s.n < 60 ? t->val.s.n : 60), t->val.s.p, want);
}

int jexpect_op(struct jx *x, enum jop op, const char *text)
{
	return jskip_op(x, op) ? 0 : junexpected(x, text);
}

int jexpect_name(struct jx *x, struct jstr *name)
{
	if (jtok(x, 0)->type != T_NAME)
		return junexpected(x, "a name");
	*name = jnext(x)->val.s;
	return 0;
}

int jparse_nest(struct jx *x)
{
	return ++x->nest > JINJA_MAX_NEST ? jx_fail(x, "brackets or blocks nested over %d deep", JINJA_MAX_NEST) : 0;
}

struct jnode *jnode_new(struct jx *x, enum jnode_type type)
{
	struct jnode *n = jx_alloc(x, sizeof(*n));

	if (n) {
		n->type = type;
		n->line = x->line;
	}
	return n;
}

int jnode_add(struct jx *x, struct jnode *n, struct jnode *kid)
{
	if (jx_grow(x, &n->kids, n->n, &n->cap, sizeof(struct jnode *)))
		return x->err->code;
	n->kids[n->n++] = kid;
	return 0;
}

/* A node over one or two others. */
int jnode_over(struct jx *x, enum jnode_type type, enum jop op, struct jnode *a, struct jnode *b, struct jnode **out)
{
	struct jnode *n = jnode_new(x, type);

	if (!n)
		return x->err->code;
	n->op = op;
	n->a = a;
	n->b = b;
	*out = n;
	return 0;
}

static int constant(struct jx *x, struct jval v, struct jnode **out)
{
	if (jnode_over(x, N_CONST, 0, NULL, NULL, out))
		return x->err->code;
	(*out)->val = v;
	return 0;
}

/* ---- primaries ---- */

/* N_NAME: val; the words for true, false and none are constants. */
int jparse_name(struct jx *x, struct jnode **out)
{
	struct jstr s = jnext(x)->val.s;

	if (jstr_is(s, "true") || jstr_is(s, "True"))
		return constant(x, jv_bool(true), out);
	if (jstr_is(s, "false") || jstr_is(s, "False"))
		return constant(x, jv_bool(false), out);
	if (jstr_is(s, "none") || jstr_is(s, "None"))
		return constant(x, jv_none(), out);
	if (jnode_over(x, N_NAME, 0, NULL, NULL, out))
		return x->err->code;
	(*out)->val = jv_str(s.p, s.n);
	return 0;
}

/* String literals side by side are one. */
static int parse_string(struct jx *x, struct jnode **out)
{
	struct jval v = jnext(x)->val;

	while (jtok(x, 0)->type == T_STR)
		if (jv_concat(x, v.s, jnext(x)->val.s, &v))
			return x->err->code;
	return constant(x, v, out);
}

/* N_LIST: kids */
static int parse_list(struct jx *x, struct jnode **out)
{
	struct jnode *kid;

	if (jnode_over(x, N_LIST, 0, NULL, NULL, out))
		return x->err->code;
	while (!jtok_op(x, OP_RBRACKET)) {
		if ((*out)->n && jexpect_op(x, OP_COMMA, "','"))
			return x->err->code;
		if (jtok_op(x, OP_RBRACKET))
			break;
		if (jparse_expr(x, &kid) || jnode_add(x, *out, kid))
			return x->err->code;
	}
	jnext(x);
	return 0;
}

/* N_DICT: kids, key and value in turn */
static int parse_dict(struct jx *x, struct jnode **out)
{
	struct jnode *key, *val;

	if (jnode_over(x, N_DICT, 0, NULL, NULL, out))
		return x->err->code;
	while (!jtok_op(x, OP_RBRACE)) {
		if ((*out)->n && jexpect_op(x, OP_COMMA, "','"))
			return x->err->code;
		if (jtok_op(x, OP_RBRACE))
			break;
		if (jparse_expr(x, &key) || jexpect_op(x, OP_COLON, "':'") || jparse_expr(x, &val) ||
			jnode_add(x, *out, key) ||
		    jnode_add(x, *out, val))
			return x->err->code;
	}
	jnext(x);
	return 0;
}

static int parse_paren(struct jx *x, struct jnode **out)
{
	if (jskip_op(x, OP_RPAREN))
		return jnode_over(x, N_TUPLE, 0, NULL, NULL, out);
	return jparse_tuple(x, true, out) || jexpect_op(x, OP_RPAREN, "')'") ? x->err->code : 0;
}

int jparse_primary(struct jx *x, struct jnode **out)
{
	const struct jtoken *t = jtok(x, 0);
	int rc;

	switch (t->type) {
	case T_NAME:  return jparse_name(x, out);
	case T_STR:   return parse_string(x, out);
	case T_INT: case T_FLOAT: return constant(x, jnext(x)->val, out);
	case T_OP:    break;
	default:      return junexpected(x, "an expression");
	}
	if (jparse_nest(x))
		return x->err->code;
	if (jskip_op(x, OP_LPAREN))
		rc = parse_paren(x, out);
	else if (jskip_op(x, OP_LBRACKET))
		rc = parse_list(x, out);
	else if (jskip_op(x, OP_LBRACE))
		rc = parse_dict(x, out);
	else
		rc = junexpected(x, "an expression");
	x->nest--;
	return rc;
}

/* ---- what follows a primary ---- */

/* N_CALL, N_FILTER, N_TEST: kids and kw are the arguments. */
static int parse_args(struct jx *x, struct jnode *n)
{
	struct jnode *arg;

	if (jexpect_op(x, OP_LPAREN, "'('") || jparse_nest(x))
		return x->err->code;
	while (!jtok_op(x, OP_RPAREN)) {
		if ((n->n || n->nkw) && jexpect_op(x, OP_COMMA, "','"))
			return x->err->code;
		if (jtok_op(x, OP_RPAREN))
			break;
		if (jtok(x, 0)->type == T_NAME && jtok(x, 1)->type == T_OP && jtok(x, 1)->op == OP_ASSIGN) {
			struct jstr name = jnext(x)->val.s;
			jnext(x);
			if (jparse_expr(x, &arg) || jx_grow(x, &n->kw, n->nkw, &n->kwcap, sizeof(*n->kw)))
				return x->err->code;
			n->kw[n->nkw++] = (struct jkwnode){ name, arg };
			continue;
		}
		if (n->nkw)
			return jx_fail(x, "argument without a name behind one with a name");
		if (jparse_expr(x, &arg) || jnode_add(x, n, arg))
			return x->err->code;
	}
	jnext(x);
	x->nest--;
	return 0;
}

/* One of [from:to:step]; absent: none */
static int parse_bound(struct jx *x, struct jnode **out)
{
	if (jtok_op(x, OP_COLON) || jtok_op(x, OP_RBRACKET))
		return constant(x, jv_none(), out);
	return jparse_expr(x, out);
}

/* N_ITEM: a[b]; b may be N_SLICE: a, b, c */
static int parse_subscript(struct jx *x, struct jnode **node)
{
	struct jnode *from, *to, *step;

	if (jtok_op(x, OP_RBRACKET))
		return junexpected(x, "an index");
	if (jparse_nest(x) || parse_bound(x, &from))
		return x->err->code;
	if (jtok_op(x, OP_COLON)) {
		jnext(x);
		if (parse_bound(x, &to))
			return x->err->code;
		if (jskip_op(x, OP_COLON) ? parse_bound(x, &step) : constant(x, jv_none(), &step))
			return x->err->code;
		if (jnode_over(x, N_SLICE, 0, from, to, &from))
			return x->err->code;
		from->c = step;
	}
	x->nest--;
	return jexpect_op(x, OP_RBRACKET, "']'") || jnode_over(x, N_ITEM, 0, *node, from, node) ? x->err->code : 0;
}

/* N_ATTR: a.val */
int jparse_dot(struct jx *x, struct jnode **node)
{
	struct jnode *index;
	struct jstr name;

	if (jtok(x, 0)->type == T_INT)
		return constant(x, jnext(x)->val, &index) || jnode_over(x, N_ITEM, 0, *node, index, node) ?
			x->err->code : 0;
	if (jexpect_name(x, &name) || jnode_over(x, N_ATTR, 0, *node, NULL, node))
		return x->err->code;
	(*node)->val = jv_str(name.p, name.n);
	return 0;
}

static int parse_call(struct jx *x, struct jnode **node)
{
	return jnode_over(x, N_CALL, 0, *node, NULL, node) || parse_args(x, *node) ? x->err->code : 0;
}

int jparse_postfix(struct jx *x, struct jnode **node)
{
	for (;;) {
		int rc;
		if (jskip_op(x, OP_DOT))
			rc = jparse_dot(x, node);
		else if (jskip_op(x, OP_LBRACKET))
			rc = parse_subscript(x, node);
		else if (jtok_op(x, OP_LPAREN))
			rc = parse_call(x, node);
		else
			return 0;
		if (rc)
			return rc;
	}
}

/* on | name(args) | ...; `first`: the first '|' is left out.  N_FILTER: a, val, arguments */
int jparse_filters(struct jx *x, struct jnode *on, bool first, struct jnode **out)
{
	struct jstr name;

	*out = on;
	while (first || jskip_op(x, OP_PIPE)) {
		first = false;
		if (jexpect_name(x, &name) || jnode_over(x, N_FILTER, 0, *out, NULL, out))
			return x->err->code;
		(*out)->val = jv_str(name.p, name.n);
		if (jtok_op(x, OP_LPAREN) && parse_args(x, *out))
			return x->err->code;
	}
	return 0;
}

/* a is [not] name [argument].  N_TEST: a, val, arguments */
static int parse_test(struct jx *x, struct jnode **node)
{
	bool negated = jtok_name(x, 0, "not");
	const struct jtoken *t;
	struct jnode *test = NULL, *arg;
	struct jstr name;

	if (negated)
		jnext(x);
	if (jexpect_name(x, &name) || jnode_over(x, N_TEST, 0, *node, NULL, &test))
		return x->err->code;
	test->val = jv_str(name.p, name.n);
	t = jtok(x, 0);
	if (jtok_op(x, OP_LPAREN)) {
		if (parse_args(x, test))
			return x->err->code;
	} else if ((t->type == T_NAME && !jtok_name(x, 0, "else") && !jtok_name(x, 0, "or") &&
		!jtok_name(x, 0, "and")) ||
		   t->type == T_STR || t->type == T_INT || t->type == T_FLOAT || jtok_op(x, OP_LBRACKET) ||
		jtok_op(x, OP_LBRACE)) {
		if (jtok_name(x, 0, "is"))
			return jx_fail(x, "tests with 'is' cannot be chained");
		/* "x is defined if c": the 'if' would be taken for an argument there too, and fail */
		if (jparse_primary(x, &arg) || jparse_postfix(x, &arg) || jnode_add(x, test, arg))
			return x->err->code;
	}
	*node = test;
	return negated ? jnode_over(x, N_NOT, 0, test, NULL, node) : 0;
}

int jparse_behind(struct jx *x, struct jnode **node)
{
	for (;;) {
		int rc;
		if (jtok_op(x, OP_PIPE))
			rc = jparse_filters(x, *node, false, node);
		else if (jtok_name(x, 0, "is"))
			rc = (jnext(x), parse_test(x, node));
		else if (jtok_op(x, OP_LPAREN))
			rc = parse_call(x, node);
		else
			return 0;
		if (rc)
			return rc;
	}
}
