/* Running statements, calls, and the rendering as a whole. */
#include <string.h>

#include "base/utf8.h"
#include "model/jinja_impl.h"

static int print(struct jx *x, const char *p, size_t n)
{
	x->printed += n;
	if (x->printed > JINJA_MAX_OUTPUT)
		return jx_fail(x, "over %d MiB of text", JINJA_MAX_OUTPUT >> 20);
	buf_add(x->out, p, n);
	if (x->out->nomem)
		return err_nomem(x->err, n, "the rendered prompt");
	return jx_step(x, n / 64);
}

static struct jscope *push_scope(struct jx *x, struct jscope *up)
{
	struct jscope *s = jx_alloc(x, sizeof(*s));

	if (s)
		s->up = up;
	return s;
}

/* What a body prints, as a string. */
static int capture(struct jx *x, const struct jnode *body, struct jval *text)
{
	struct buf b = { 0 }, *out = x->out;
	int rc;

	x->out = &b;
	rc = jinja_exec(x, body);
	x->out = out;
	if (!rc)
		rc = jv_copy(x, b.p, b.len, text);
	buf_free(&b);
	return rc;
}

/* ---- assignment ---- */

static int assign_attr(struct jx *x, const struct jnode *target, struct jval v)
{
	struct jval ns;

	if (jinja_eval(x, target->a, &ns))
		return x->err->code;
	if (ns.kind != J_NAMESPACE)
		return jx_fail(x, "attributes of '%s' cannot be set, only those of a namespace", jv_type(ns));
	return jdict_set(x, ns.dict, target->val, v);
}

int jinja_assign(struct jx *x, const struct jnode *target, struct jval v)
{
	const struct jlist *l;

	if (target->type == N_NAME)
		return jdict_set(x, &x->scope->vars, target->val, v);
	if (target->type == N_ATTR)
		return assign_attr(x, target, v);
	if (jv_iterate(x, v, &l))
		return x->err->code;
	if (l->n != target->n)
		return jx_fail(x, "%zu values for %zu names", l->n, target->n);
	for (size_t i = 0; i < l->n; i++)
		if (jinja_assign(x, target->kids[i], l->v[i]))
			return x->err->code;
	return 0;
}

static int exec_set(struct jx *x, const struct jnode *n)
{
	struct jval v;

	if (n->type == N_SETBLOCK && capture(x, n->kids[0], &n->c->val))
		return x->err->code;
	return jinja_eval(x, n->b, &v) || jinja_assign(x, n->a, v) ? x->err->code : 0;
}

/* ---- loops ---- */

/* The items that the loop's condition keeps. */
static int keep(struct jx *x, const struct jnode *n, const struct jlist **list)
{
	struct jscope *scope = x->scope;
	const struct jlist *all = *list;
	struct jval kept, yes;
	int rc = jv_list(x, false, &kept);

	for (size_t i = 0; !rc && i < all->n; i++) {
		x->scope = push_scope(x, scope);
		if (!x->scope || jinja_assign(x, n->a, all->v[i]) || jinja_eval(x, n->c, &yes) ||
		    (jv_true(yes) && jlist_add(x, kept.list, all->v[i])))
			rc = x->err->code;
	}
	x->scope = scope;
	*list = kept.list;
	return rc;
}

static int run_loop(struct jx *x, const struct jnode *n, const struct jlist *list)
{
	struct jscope *scope = x->scope;
	struct jloop *outer = x->loop, *loop = jx_alloc(x, sizeof(*loop));
	int rc = loop ? 0 : x->err->code;

	if (loop) {
		*loop = (struct jloop){ .list = list };
		x->loop = loop;
	}
	for (size_t i = 0; !rc && i < list->n && x->flow != FLOW_BREAK; i++) {
		loop->at = i;
		x->flow = FLOW_ON;
		x->scope = push_scope(x, scope);
		if (!x->scope || jinja_assign(x, n->a, list->v[i]) || jinja_exec(x, n->kids[0]))
			rc = x->err->code;
	}
	x->flow = FLOW_ON;
	x->scope = scope;
	x->loop = outer;
	return rc;
}

static int exec_for(struct jx *x, const struct jnode *n)
{
	const struct jlist *list;
	struct jval v;

	if (jinja_eval(x, n->b, &v) || jv_iterate(x, v, &list) || (n->c && keep(x, n, &list)))
		return x->err->code;
	if (list->n)
		return run_loop(x, n, list);
	return n->kids[1] ? jinja_exec(x, n->kids[1]) : 0;
}

/* ---- the other statements ---- */

static int exec_if(struct jx *x, const struct jnode *n)
{
	struct jval test;

	for (size_t i = 0; i + 1 < n->n; i += 2) {
		if (jinja_eval(x, n->kids[i], &test))
			return x->err->code;
		if (jv_true(test))
			return jinja_exec(x, n->kids[i + 1]);
	}
	return n->a ? jinja_exec(x, n->a) : 0;
}

static int exec_print(struct jx *x, const struct jnode *n)
{
	struct jval v;
	struct jstr s;

	return jinja_eval(x, n->a, &v) || jv_text(x, v, &s) || print(x, s.p, s.n) ? x->err->code : 0;
}

static int exec_filter(struct jx *x, const struct jnode *n)
{
	struct jval v;
	struct jstr s;

	return capture(x, n->a, &n->c->val) || jinja_eval(x, n->b, &v) || jv_text(x, v, &s) || print(x, s.p, s.n) ?
		x->err->code : 0;
}

static int exec_with(struct jx *x, const struct jnode *n)
{
	struct jscope *scope = x->scope, *inner = push_scope(x, scope);
	struct jval v;
	int rc = inner ? 0 : x->err->code;

	for (size_t i = 0; !rc && i + 1 < n->n; i += 2) /* values see the scope around */
		rc = jinja_eval(x, n->kids[i + 1], &v) || jdict_set(x, &inner->vars, n->kids[i]->val, v) ?
			x->err->code : 0;
	x->scope = inner;
	if (!rc)
		rc = jinja_exec(x, n->a);
	x->scope = scope;
	return rc;
}

static int exec_macro(struct jx *x, const struct jnode *n)
{
	struct jmacro *m = jx_alloc(x, sizeof(*m));

	if (!m)
		return x->err->code;
	*m = (struct jmacro){ .node = n, .scope = x->scope };
	return jdict_set(x, &x->scope->vars, n->val, (struct jval){ .kind = J_MACRO, .macro = m });
}

static int exec_body(struct jx *x, const struct jnode *n)
{
	for (size_t i = 0; i < n->n && x->flow == FLOW_ON; i++)
		if (jinja_exec(x, n->kids[i]))
			return x->err->code;
	return 0;
}

int jinja_exec(struct jx *x, const struct jnode *n)
{
	int rc = jx_enter(x);

	if (!rc) {
		x->line = n->line;
		switch (n->type) {
		case N_BODY:  rc = exec_body(x, n); break;
		case N_DATA:  rc = print(x, n->val.s.p, n->val.s.n); break;
		case N_PRINT: rc = exec_print(x, n); break;
		case N_SET: case N_SETBLOCK: rc = exec_set(x, n); break;
		case N_FOR:   rc = exec_for(x, n); break;
		case N_IF:    rc = exec_if(x, n); break;
		case N_MACRO: rc = exec_macro(x, n); break;
		case N_FILTERBLOCK: rc = exec_filter(x, n); break;
		case N_WITH:  rc = exec_with(x, n); break;
		case N_BREAK: x->flow = FLOW_BREAK; break;
		default:      x->flow = FLOW_CONTINUE;
		}
	}
	x->depth--;
	return rc;
}

/* ---- calls ---- */

static int bind_parameter(struct jx *x, const struct jmacro *m, const struct jargs *a, size_t i)
{
	const struct jnode *param = m->node->kids[i];
	struct jval v = jv_undef(param->val.s);
	bool given = i < a->n;

	if (given)
		v = a->v[i];
	for (size_t k = 0; k < a->nkw; k++)
		if (a->kw[k].name.n == param->val.s.n && !memcmp(a->kw[k].name.p, param->val.s.p, param->val.s.n)) {
			if (given)
				return jx_fail(x, "argument '%.*s' is given twice", (int)param->val.s.n,
					param->val.s.p);
			v = a->kw[k].val;
			given = true;
		}
	if (!given && param->a && jinja_eval(x, param->a, &v))
		return x->err->code;
	return jdict_set(x, &x->scope->vars, param->val, v);
}

static int check_keywords(struct jx *x, const struct jmacro *m, const struct jargs *a)
{
	if (a->n > m->node->n)
		return jx_fail(x, "macro '%.*s' takes %zu arguments, not %zu", (int)m->node->val.s.n, m->node->val.s.p,
			m->node->n, a->n);
	for (size_t k = 0; k < a->nkw; k++) {
		struct jstr name = a->kw[k].name;
		size_t i = 0;
		while (i < m->node->n && !(m->node->kids[i]->val.s.n == name.n &&
			!memcmp(m->node->kids[i]->val.s.p, name.p, name.n)))
			i++;
		if (i == m->node->n)
			return jx_fail(x, "macro '%.*s' has no argument '%.*s'", (int)m->node->val.s.n,
				m->node->val.s.p, (int)name.n, name.p);
	}
	return 0;
}

int jinja_call_macro(struct jx *x, const struct jmacro *m, const struct jargs *a, struct jval *out)
{
	struct jscope *scope = x->scope;
	struct jloop *loop = x->loop;
	int rc = jx_enter(x);

	if (!rc)
		rc = check_keywords(x, m, a);
	if (!rc) {
		x->scope = push_scope(x, m->scope);
		x->loop = NULL;
		rc = x->scope ? 0 : x->err->code;
	}
	for (size_t i = 0; !rc && i < m->node->n; i++)
		rc = bind_parameter(x, m, a, i);
	if (!rc)
		rc = capture(x, m->node->a, out);
	x->scope = scope;
	x->loop = loop;
	x->depth--;
	return rc;
}

/* ---- rendering ---- */

static int set_variables(struct jx *x, const json_t *vars)
{
	const char *name;
	json_t *v;

	x->scope = push_scope(x, NULL);
	if (!x->scope)
		return x->err->code;
	json_object_foreach((json_t *)(uintptr_t)vars, name, v) {
		struct jval val;
		if (jv_from_json(x, v, &val) || jdict_set(x, &x->scope->vars, jv_str(name, strlen(name)), val))
			return x->err->code;
	}
	return 0;
}

int jinja_render(const char *src, size_t n, const json_t *vars, struct buf *out, struct ds_err *err)
{
	struct jx x = { .err = err, .out = out };
	struct jnode *root;
	size_t bad;
	int rc;

	if (n > JINJA_MAX_SOURCE)
		return err_set(err, DS_DATA, "chat template of %zu bytes, at most %d are read", n, JINJA_MAX_SOURCE);
	if (!utf8_valid(src, n, &bad))
		return err_set(err, DS_DATA, "chat template is not UTF-8 at offset %zu", bad);
	rc = set_variables(&x, vars);
	if (!rc)
		rc = jinja_lex(&x, src, n);
	if (!rc)
		rc = jinja_parse(&x, &root);
	if (!rc)
		rc = jinja_exec(&x, root);
	jx_free(&x);
	return rc;
}
