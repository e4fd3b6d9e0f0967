/*
 * Inside of the Jinja interpreter.  Everything that one rendering makes lives in its arena and is never freed singly;
 * lists, dicts and strings do not change once made (namespaces do).
 */
#ifndef DS_MODEL_JINJA_IMPL_H
#define DS_MODEL_JINJA_IMPL_H

#include "model/jinja.h"

/* ---- values ---- */

enum jkind { J_UNDEF, J_NONE, J_BOOL, J_INT, J_FLOAT, J_STR, J_LIST, J_DICT, J_NAMESPACE, J_FUNC, J_METHOD, J_MACRO,
	J_LOOP, J_SLICE };

struct jstr { const char *p; size_t n; };

struct jval {
	enum jkind kind;
	union {
		bool b;
		int64_t i;
		double f;
		struct jstr s;             /* J_STR; J_UNDEF: the name that is not there; J_FUNC: its name */
		struct jlist *list;
		struct jdict *dict;        /* J_DICT, J_NAMESPACE */
		struct jmethod *method;
		struct jmacro *macro;
		struct jloop *loop;
		struct jval *slice;        /* [3]: from, to, step; J_NONE where not given */
	};
};

struct jlist { struct jval *v; size_t n, cap; bool tuple; };
struct jentry { struct jval key, val; };
struct jdict { struct jentry *v; size_t n, cap; };
struct jmethod { struct jval self; struct jstr name; };
struct jscope { struct jdict vars; struct jscope *up; };
struct jmacro { const struct jnode *node; struct jscope *scope; };
struct jloop { const struct jlist *list; size_t at; struct jval changed; };

struct jkw { struct jstr name; struct jval val; };
struct jargs { struct jval *v; size_t n; struct jkw *kw; size_t nkw; };

/* ---- syntax ---- */

enum jop {
	OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN,
	OP_NOTIN,
	OP_TILDE, OP_LBRACKET, OP_RBRACKET, OP_LPAREN, OP_RPAREN, OP_LBRACE, OP_RBRACE, OP_ASSIGN, OP_DOT, OP_COLON,
	OP_PIPE, OP_COMMA,
};

enum jtoken_type { T_DATA, T_BLOCK_BEGIN, T_BLOCK_END, T_VAR_BEGIN, T_VAR_END, T_NAME, T_STR, T_INT, T_FLOAT, T_OP,
	T_EOF };

struct jtoken {
	enum jtoken_type type;
	enum jop op;
	int line;
	struct jval val;                   /* T_DATA, T_NAME, T_STR: a string; T_INT, T_FLOAT */
};

enum jnode_type {
	N_CONST, N_NAME, N_LIST, N_TUPLE, N_DICT, N_ATTR, N_ITEM, N_SLICE, N_CALL, N_FILTER, N_TEST, N_NOT, N_NEG,
	N_POS, N_AND, N_OR, N_BINARY,
	N_CONCAT, N_COMPARE, N_COND,
	N_BODY, N_DATA, N_PRINT, N_SET, N_SETBLOCK, N_FOR, N_IF, N_MACRO, N_FILTERBLOCK, N_WITH, N_BREAK, N_CONTINUE,
};

/* What a, b, c, kids and keys are: see the comments where jinja_parse.c and jinja_stmt.c make them. */
struct jnode {
	enum jnode_type type;
	enum jop op;
	int line;
	struct jval val;
	struct jnode *a, *b, *c;
	struct jnode **kids;
	size_t n, cap;
	struct jkwnode { struct jstr name; struct jnode *val; } *kw;
	size_t nkw, kwcap;
};

/* ---- a rendering ---- */

struct jchunk;
enum jflow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

struct jx {
	struct ds_err *err;
	struct jchunk *chunks;
	size_t memory, steps, printed;
	int line, depth, nest;
	struct jtoken *tokens;
	size_t ntokens, captokens, at;
	struct jscope *scope;
	struct jloop *loop;
	struct buf *out;
	enum jflow flow;
	int loops;                         /* loops around the statement being parsed or run */
};

/* All of these return 0, or the error's code with x->err set. */

__attribute__((format(printf, 2, 3))) int jx_fail(struct jx *x, const char *fmt, ...);
int jx_step(struct jx *x, size_t n);       /* counts n units of work */
int jx_enter(struct jx *x);                /* one level deeper; x->depth-- on the way back */
void *jx_alloc(struct jx *x, size_t n);    /* zeroed; NULL: error set */
void jx_free(struct jx *x);                /* all of it */
/* Makes room for one more element of `size` in *v (n of cap used). */
int jx_grow(struct jx *x, void *v, size_t n, size_t *cap, size_t size);

/* values (jinja_value.c) */
static inline struct jval jv_none(void) { return (struct jval){ .kind = J_NONE }; }
static inline struct jval jv_bool(bool b) { return (struct jval){ .kind = J_BOOL, .b = b }; }
static inline struct jval jv_int(int64_t i) { return (struct jval){ .kind = J_INT, .i = i }; }
static inline struct jval jv_float(double f) { return (struct jval){ .kind = J_FLOAT, .f = f }; }
static inline struct jval jv_str(const char *p, size_t n) { return (struct jval){ .kind = J_STR, .s = { p, n } }; }
static inline struct jval jv_undef(struct jstr name) { return (struct jval){ .kind = J_UNDEF, .s = name }; }
bool jstr_is(struct jstr s, const char *text);
struct jstr jstr_of(const char *text);
const char *jv_type(struct jval v);        /* as Python calls it */
bool jv_number(struct jval v, double *f);  /* bool, int, float */
bool jv_true(struct jval v);
int jv_equal(struct jx *x, struct jval a, struct jval b, bool *equal);
int jv_order(struct jx *x, struct jval a, struct jval b, int *order);
int jv_concat(struct jx *x, struct jstr a, struct jstr b, struct jval *out);
int jv_copy(struct jx *x, const char *p, size_t n, struct jval *out);
int jv_list(struct jx *x, bool tuple, struct jval *out);
int jlist_add(struct jx *x, struct jlist *l, struct jval v);
int jdict_set(struct jx *x, struct jdict *d, struct jval key, struct jval val);
int jdict_get(struct jx *x, const struct jdict *d, struct jval key, struct jval *val, bool *found);
int jv_from_json(struct jx *x, const json_t *j, struct jval *out);
/* What iterating over v gives, as a list (characters of a string, keys of a dict). */
int jv_iterate(struct jx *x, struct jval v, const struct jlist **out);
int jv_length(struct jx *x, struct jval v, int64_t *n);

/* text of values (jinja_text.c) */
int jv_text(struct jx *x, struct jval v, struct jstr *out);          /* str() */
int jv_repr(struct jx *x, struct jval v, struct buf *b);
int jv_tojson(struct jx *x, const struct jargs *a, struct jval v, struct jval *out);
void jfloat_text(double f, char dst[40]);

/* arguments */
/* Argument i or of that name; *v is left alone if it is not given.  Too many or unknown ones: args_check. */
bool args_get(const struct jargs *a, size_t i, const char *name, struct jval *v);
int args_check(struct jx *x, const struct jargs *a, size_t max, const char *const *names, const char *what);
int args_str(struct jx *x, const struct jargs *a, size_t i, const char *name, struct jstr *s, bool *given,
	const char *what);
int args_int(struct jx *x, const struct jargs *a, size_t i, const char *name, int64_t *v, const char *what);

int jinja_lex(struct jx *x, const char *src, size_t n);
int jinja_parse(struct jx *x, struct jnode **root);
int jparse_name(struct jx *x, struct jnode **out);
int jparse_primary(struct jx *x, struct jnode **out);
int jparse_postfix(struct jx *x, struct jnode **node);   /* .a [b] (c) */
int jparse_behind(struct jx *x, struct jnode **node);    /* | filter, is test, (c) */
int jparse_dot(struct jx *x, struct jnode **node);
int jparse_expr(struct jx *x, struct jnode **out);
int jparse_tuple(struct jx *x, bool with_cond, struct jnode **out);
int jparse_target(struct jx *x, struct jnode **out);
int jparse_filters(struct jx *x, struct jnode *on, bool first, struct jnode **out);
struct jnode *jnode_new(struct jx *x, enum jnode_type type);         /* NULL: error set */
int jnode_over(struct jx *x, enum jnode_type type, enum jop op, struct jnode *a, struct jnode *b, struct jnode **out);
int jnode_add(struct jx *x, struct jnode *n, struct jnode *kid);
const struct jtoken *jtok(const struct jx *x, size_t ahead);
bool jtok_name(const struct jx *x, size_t ahead, const char *name);
bool jtok_op(const struct jx *x, enum jop op);
const struct jtoken *jnext(struct jx *x);
bool jskip_op(struct jx *x, enum jop op);
int junexpected(struct jx *x, const char *want);
int jexpect_op(struct jx *x, enum jop op, const char *text);
int jexpect_name(struct jx *x, struct jstr *name);
int jparse_nest(struct jx *x);

int jinja_eval(struct jx *x, const struct jnode *n, struct jval *out);
int jinja_exec(struct jx *x, const struct jnode *n);
int jinja_assign(struct jx *x, const struct jnode *target, struct jval v);
int jinja_call_macro(struct jx *x, const struct jmacro *m, const struct jargs *a, struct jval *out);
int jinja_call(struct jx *x, struct jval f, const struct jargs *a, struct jval *out);
int jinja_attr(struct jx *x, struct jval v, struct jstr name, struct jval *out);
int jinja_item(struct jx *x, struct jval v, struct jval key, struct jval *out);
int jinja_filter(struct jx *x, struct jstr name, struct jval v, const struct jargs *a, struct jval *out);
int jinja_test(struct jx *x, struct jstr name, struct jval v, const struct jargs *a, bool *out);
bool jinja_has_method(struct jval v, struct jstr name);
int jinja_method(struct jx *x, struct jval self, struct jstr name, const struct jargs *a, struct jval *out);
int jinja_str_method(struct jx *x, struct jstr s, struct jstr name, const struct jargs *a, struct jval *out);

/* pieces shared by methods and filters */
bool jspace(uint32_t c);
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
struct jstr jstr_strip(struct jstr s, const struct jstr *chars, int sides);
int jstr_case(struct jx *x, struct jstr s, char how, struct jval *out);  /* 'u'pper, 'l'ower, 't'itle, 'c'apitalize */
int jstr_replace(struct jx *x, struct jstr s, struct jstr from, struct jstr to, int64_t count, struct jval *out);

#endif
