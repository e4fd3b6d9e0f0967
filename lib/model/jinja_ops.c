/* Expressions of the Jinja language: operators, in the order of precedence of its own parser. */
#include "model/jinja_impl.h"

static int parse_cond(struct jx *x, struct jnode **out);

static int parse_unary(struct jx *x, bool filters, struct jnode **out)
{
	int rc;

	if (jtok_op(x, OP_SUB) || jtok_op(x, OP_ADD)) {
		enum jnode_type type = jnext(x)->op == OP_SUB ? N_NEG : N_POS;
		if (jparse_nest(x) || parse_unary(x, false, out))
			return x->err->code;
		x->nest--;
		rc = jnode_over(x, type, 0, *out, NULL, out);
	} else {
		rc = jparse_primary(x, out);
	}
	if (!rc)
		rc = jparse_postfix(x, out);
	if (!rc && filters)
		rc = jparse_behind(x, out);
	return rc;
}

/* One level of operators that bind to the left.  N_BINARY: a op b */
static int parse_binary(struct jx *x, int level, struct jnode **out)
{
	static const enum jop levels[][4] = {
		{ OP_ADD, OP_SUB, OP_SUB, OP_SUB }, { OP_TILDE, OP_TILDE, OP_TILDE, OP_TILDE },
		{ OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD },
		{ OP_POW, OP_POW, OP_POW, OP_POW },
	};
	struct jnode *right;

	if (level == (int)ARRAY_LEN(levels))
		return parse_unary(x, true, out);
	if (parse_binary(x, level + 1, out))
		return x->err->code;
	for (;;) {
		const struct jtoken *t = jtok(x, 0);
		bool mine = false;
		for (size_t i = 0; i < 4; i++)
			mine |= t->type == T_OP && t->op == levels[level][i];
		if (!mine)
			return 0;
		jnext(x);
		if (parse_binary(x, level + 1, &right) ||
		    jnode_over(x, level == 1 ? N_CONCAT : N_BINARY, t->op, *out, right, out))
			return x->err->code;
	}
}

static bool compare_op(struct jx *x, enum jop *op)
{
	const struct jtoken *t = jtok(x, 0);

	if (t->type == T_OP && t->op >= OP_EQ && t->op <= OP_GE)
		*op = t->op;
	else if (jtok_name(x, 0, "in"))
		*op = OP_IN;
	else if (jtok_name(x, 0, "not") && jtok_name(x, 1, "in"))
		*op = OP_NOTIN;
	else
		return false;
	x->at += *op == OP_NOTIN ? 2 : 1;
	return true;
}

/* N_COMPARE: a, kids; each kid is an N_BINARY that holds op and b: a op b and b op c ... */
static int parse_compare(struct jx *x, struct jnode **out)
{
	struct jnode *first, *link = NULL, *right;
	enum jop op;

	if (parse_binary(x, 0, &first))
		return x->err->code;
	*out = first;
	while (compare_op(x, &op)) {
		if (*out == first && jnode_over(x, N_COMPARE, 0, first, NULL, out))
			return x->err->code;
		if (parse_binary(x, 0, &right) || jnode_over(x, N_BINARY, op, NULL, right, &link) ||
			jnode_add(x, *out, link))
			return x->err->code;
	}
	return 0;
}

static int parse_not(struct jx *x, struct jnode **out)
{
	if (!jtok_name(x, 0, "not"))
		return parse_compare(x, out);
	jnext(x);
	if (jparse_nest(x) || parse_not(x, out))
		return x->err->code;
	x->nest--;
	return jnode_over(x, N_NOT, 0, *out, NULL, out);
}

static int parse_and(struct jx *x, struct jnode **out)
{
	struct jnode *right;

	if (parse_not(x, out))
		return x->err->code;
	while (jtok_name(x, 0, "and")) {
		jnext(x);
		if (parse_not(x, &right) || jnode_over(x, N_AND, 0, *out, right, out))
			return x->err->code;
	}
	return 0;
}

static int parse_or(struct jx *x, struct jnode **out)
{
	struct jnode *right;

	if (parse_and(x, out))
		return x->err->code;
	while (jtok_name(x, 0, "or")) {
		jnext(x);
		if (parse_and(x, &right) || jnode_over(x, N_OR, 0, *out, right, out))
			return x->err->code;
	}
	return 0;
}

/* N_COND: a if b else c (c NULL: undefined) */
static int parse_cond(struct jx *x, struct jnode **out)
{
	if (parse_or(x, out))
		return x->err->code;
	while (jtok_name(x, 0, "if")) {
		jnext(x);
		if (jnode_over(x, N_COND, 0, *out, NULL, out) || parse_or(x, &(*out)->b))
			return x->err->code;
		if (jtok_name(x, 0, "else")) {
			jnext(x);
			if (jparse_nest(x) || parse_cond(x, &(*out)->c))
				return x->err->code;
			x->nest--;
		}
	}
	return 0;
}

int jparse_expr(struct jx *x, struct jnode **out)
{
	return parse_cond(x, out);
}

/* One expression, or several with commas: N_TUPLE.  with_cond false: "a if b" is left to a for statement. */
int jparse_tuple(struct jx *x, bool with_cond, struct jnode **out)
{
	struct jnode *first, *kid;

	if (with_cond ? parse_cond(x, &first) : parse_or(x, &first))
		return x->err->code;
	*out = first;
	if (!jtok_op(x, OP_COMMA))
		return 0;
	if (jnode_over(x, N_TUPLE, 0, NULL, NULL, out) || jnode_add(x, *out, first))
		return x->err->code;
	while (jskip_op(x, OP_COMMA)) {
		const struct jtoken *t = jtok(x, 0);
		if (t->type == T_BLOCK_END || t->type == T_VAR_END || jtok_op(x, OP_RPAREN))
			break;
		if ((with_cond ? parse_cond(x, &kid) : parse_or(x, &kid)) || jnode_add(x, *out, kid))
			return x->err->code;
	}
	return 0;
}

/* What is assigned to: a name, namespace.attribute (N_ATTR over N_NAME), or names with commas (N_TUPLE). */
int jparse_target(struct jx *x, struct jnode **out)
{
	struct jnode *tuple = NULL, *one;
	bool paren = jskip_op(x, OP_LPAREN);

	do {
		if (tuple && jtok_op(x, OP_RPAREN))
			break;
		if (jtok(x, 0)->type != T_NAME)
			return junexpected(x, "a name");
		if (jparse_name(x, &one))
			return x->err->code;
		if (one->type != N_NAME)
			return jx_fail(x, "a constant cannot be assigned to");
		if (jskip_op(x, OP_DOT) && jparse_dot(x, &one))
			return x->err->code;
		if (one->type == N_ITEM)
			return jx_fail(x, "an item cannot be assigned to");
		if (!tuple && jtok_op(x, OP_COMMA) && jnode_over(x, N_TUPLE, 0, NULL, NULL, &tuple))
			return x->err->code;
		if (tuple && jnode_add(x, tuple, one))
			return x->err->code;
	} while (jskip_op(x, OP_COMMA));
	*out = tuple ? tuple : one;
	return paren ? jexpect_op(x, OP_RPAREN, "')'") : 0;
}
