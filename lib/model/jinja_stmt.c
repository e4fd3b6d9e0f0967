/* Statements of the Jinja language. */
#include <string.h>

#include "model/jinja_impl.h"

static int parse_body(struct jx *x, const char *const *ends, struct jnode **out);

static int expect_end(struct jx *x)
{
	const struct jtoken *t = jtok(x, 0);

	if (t->type == T_BLOCK_END) {
		x->at++;
		return 0;
	}
	x->line = t->line;
	return jx_fail(x, "'%%}' is expected behind the statement");
}

/* The name of the tag that ended a body, which is skipped. */
static int end_tag(struct jx *x, struct jstr *name)
{
	return jexpect_name(x, name);
}

/* N_SET: a = b.  N_SETBLOCK: a = b, a chain of filters over the constant c, which takes the text of kids[0] */
static int parse_set(struct jx *x, struct jnode **out)
{
	static const char *const ends[] = { "endset", NULL };
	struct jnode *n = jnode_new(x, N_SET), *body;
	struct jstr end;

	if (!n || jparse_target(x, &n->a))
		return x->err->code;
	*out = n;
	if (jtok_op(x, OP_ASSIGN)) {
		x->at++;
		return jparse_tuple(x, true, &n->b) || expect_end(x) ? x->err->code : 0;
	}
	n->type = N_SETBLOCK;
	n->c = jnode_new(x, N_CONST);
	if (!n->c || jparse_filters(x, n->c, false, &n->b) || expect_end(x) || parse_body(x, ends, &body) ||
		end_tag(x, &end))
		return x->err->code;
	return jnode_add(x, n, body) || expect_end(x) ? x->err->code : 0;
}

/* N_FOR: for a in b if c; kids: body, else (NULL: none) */
static int parse_for(struct jx *x, struct jnode **out)
{
	static const char *const ends[] = { "else", "endfor", NULL };
	struct jnode *n = jnode_new(x, N_FOR), *body, *other = NULL;
	struct jstr end;

	if (!n || jparse_target(x, &n->a))
		return x->err->code;
	*out = n;
	if (!jtok_name(x, 0, "in"))
		return jx_fail(x, "'for' without 'in'");
	x->at++;
	if (jparse_tuple(x, false, &n->b))
		return x->err->code;
	if (jtok_name(x, 0, "if")) {
		x->at++;
		if (jparse_expr(x, &n->c))
			return x->err->code;
	}
	if (jtok_name(x, 0, "recursive"))
		return jx_fail(x, "recursive loops are not known");
	x->loops++;
	if (expect_end(x) || parse_body(x, ends, &body) || end_tag(x, &end))
		return x->err->code;
	x->loops--;
	if (jstr_is(end, "else") && (expect_end(x) || parse_body(x, ends + 1, &other) || end_tag(x, &end)))
		return x->err->code;
	return jnode_add(x, n, body) || jnode_add(x, n, other) || expect_end(x) ? x->err->code : 0;
}

/* N_IF: kids: condition and body in turn; a: the body of else, or NULL */
static int parse_if(struct jx *x, struct jnode **out)
{
	static const char *const ends[] = { "elif", "else", "endif", NULL };
	struct jnode *n = jnode_new(x, N_IF), *cond, *body;
	struct jstr end;

	if (!n)
		return x->err->code;
	*out = n;
	do {
		if (jparse_tuple(x, false, &cond) || expect_end(x) || parse_body(x, ends, &body) ||
			jnode_add(x, n, cond) ||
		    jnode_add(x, n, body) || end_tag(x, &end))
			return x->err->code;
	} while (jstr_is(end, "elif"));
	if (jstr_is(end, "else") && (expect_end(x) || parse_body(x, ends + 2, &n->a) || end_tag(x, &end)))
		return x->err->code;
	return expect_end(x);
}

/* N_MACRO: val; kids: parameters (N_NAME; a: the default, or NULL); a: body */
static int parse_macro(struct jx *x, struct jnode **out)
{
	static const char *const ends[] = { "endmacro", NULL };
	struct jnode *n = jnode_new(x, N_MACRO), *param;
	int loops = x->loops;
	struct jstr name;

	if (!n || jexpect_name(x, &name) || jexpect_op(x, OP_LPAREN, "'('"))
		return x->err->code;
	*out = n;
	n->val = jv_str(name.p, name.n);
	while (!jtok_op(x, OP_RPAREN)) {
		if ((n->n && jexpect_op(x, OP_COMMA, "','")) || jexpect_name(x, &name))
			return x->err->code;
		param = jnode_new(x, N_NAME);
		if (!param || jnode_add(x, n, param))
			return x->err->code;
		param->val = jv_str(name.p, name.n);
		if (!jtok_op(x, OP_ASSIGN))
			continue;
		x->at++;
		if (jparse_expr(x, &param->a)) /* the default */
			return x->err->code;
	}
	x->at++;
	x->loops = 0;
	if (expect_end(x) || parse_body(x, ends, &n->a) || end_tag(x, &name))
		return x->err->code;
	x->loops = loops;
	return expect_end(x);
}

/* N_FILTERBLOCK: a: body; b: a chain of filters over the constant c, which takes the body's text */
static int parse_filter_block(struct jx *x, struct jnode **out)
{
	static const char *const ends[] = { "endfilter", NULL };
	struct jnode *n = jnode_new(x, N_FILTERBLOCK);
	struct jstr end;

	if (!n || !(n->c = jnode_new(x, N_CONST)) || jparse_filters(x, n->c, true, &n->b) || expect_end(x) ||
		parse_body(x, ends, &n->a) || end_tag(x, &end))
		return x->err->code;
	*out = n;
	return expect_end(x);
}

/* N_WITH: kids: target and value in turn; a: body */
static int parse_with(struct jx *x, struct jnode **out)
{
	static const char *const ends[] = { "endwith", NULL };
	struct jnode *n = jnode_new(x, N_WITH), *target, *value;
	struct jstr end;

	if (!n)
		return x->err->code;
	*out = n;
	while (jtok(x, 0)->type != T_BLOCK_END) {
		if (n->n && jexpect_op(x, OP_COMMA, "','"))
			return x->err->code;
		target = jnode_new(x, N_NAME);
		if (!target || jexpect_name(x, &end) || jexpect_op(x, OP_ASSIGN, "'='") || jparse_expr(x, &value) ||
		    jnode_add(x, n, target) || jnode_add(x, n, value))
			return x->err->code;
		target->val = jv_str(end.p, end.n);
	}
	if (expect_end(x) || parse_body(x, ends, &n->a) || end_tag(x, &end))
		return x->err->code;
	return expect_end(x);
}

/* {% generation %} marks what the model said, for training: its body is all there is to it. */
static int parse_generation(struct jx *x, struct jnode **out)
{
	static const char *const ends[] = { "endgeneration", NULL };
	struct jstr end;

	return expect_end(x) || parse_body(x, ends, out) || end_tag(x, &end) || expect_end(x) ? x->err->code : 0;
}

static int parse_jump(struct jx *x, enum jnode_type type, struct jnode **out)
{
	if (!x->loops)
		return jx_fail(x, "'break' or 'continue' outside a loop");
	*out = jnode_new(x, type);
	return *out ? expect_end(x) : x->err->code;
}

static int parse_statement(struct jx *x, struct jnode **out)
{
	struct jstr name;
	int rc;

	if (jexpect_name(x, &name) || jparse_nest(x))
		return x->err->code;
	if (jstr_is(name, "set"))
		rc = parse_set(x, out);
	else if (jstr_is(name, "for"))
		rc = parse_for(x, out);
	else if (jstr_is(name, "if"))
		rc = parse_if(x, out);
	else if (jstr_is(name, "macro"))
		rc = parse_macro(x, out);
	else if (jstr_is(name, "filter"))
		rc = parse_filter_block(x, out);
	else if (jstr_is(name, "with"))
		rc = parse_with(x, out);
	else if (jstr_is(name, "generation"))
		rc = parse_generation(x, out);
	else if (jstr_is(name, "break"))
		rc = parse_jump(x, N_BREAK, out);
	else if (jstr_is(name, "continue"))
		rc = parse_jump(x, N_CONTINUE, out);
	else
		rc = jx_fail(x, "unknown statement '%.*s'", (int)(name.n < 60 ? name.n : 60), name.p);
	x->nest--;
	return rc;
}

/* N_DATA: val; N_PRINT: a */
static int parse_item(struct jx *x, struct jnode **out)
{
	const struct jtoken *t = jtok(x, 0);

	x->line = t->line;
	x->at++;
	if (t->type == T_BLOCK_BEGIN)
		return parse_statement(x, out);
	*out = jnode_new(x, t->type == T_DATA ? N_DATA : N_PRINT);
	if (!*out)
		return x->err->code;
	(*out)->val = t->val;
	if (t->type == T_DATA)
		return 0;
	if (jparse_tuple(x, true, &(*out)->a))
		return x->err->code;
	if (jtok(x, 0)->type != T_VAR_END)
		return jx_fail(x, "'}}' is expected behind the expression");
	x->at++;
	return 0;
}

/* N_BODY: kids.  Up to a tag whose name is one of ends, which is left; or to the end of the template (ends NULL). */
static int parse_body(struct jx *x, const char *const *ends, struct jnode **out)
{
	struct jnode *n = jnode_new(x, N_BODY), *kid = NULL;

	if (!n)
		return x->err->code;
	*out = n;
	for (;;) {
		const struct jtoken *t = jtok(x, 0);
		if (t->type == T_EOF)
			return ends ? jx_fail(x, "the template ends without '%s'", ends[0]) : 0;
		for (size_t i = 0; ends && ends[i] && t->type == T_BLOCK_BEGIN; i++)
			if (jtok_name(x, 1, ends[i])) {
				x->at++;
				return 0;
			}
		if (parse_item(x, &kid) || jnode_add(x, n, kid))
			return x->err->code;
	}
}

int jinja_parse(struct jx *x, struct jnode **root)
{
	return parse_body(x, NULL, root);
}
