/*
 * From the source of a template to tokens.  White space as Hugging Face sets Jinja up: a newline behind a block or
 * comment goes (trim_blocks), blanks in front of one that begins a line go (lstrip_blocks); '-' and '+' at a tag's ends
 * decide for themselves.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/jinja_impl.h"

struct lex {
	struct jx *x;
	const char *s;
	size_t n, i;
	int line;
	bool line_start;   /* the last tag ended with a newline, or nothing was read yet */
};

bool jspace(uint32_t c)
{
	return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
		(c >= 0x2000 && c <= 0x200a) ||
		c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool at(const struct lex *l, const char *text)
{
	size_t len = strlen(text);

	return l->n - l->i >= len && !memcmp(l->s + l->i, text, len);
}

static void skip(struct lex *l, size_t n)
{
	while (n-- && l->i < l->n)
		l->line += l->s[l->i++] == '\n';
}

static void skip_space(struct lex *l)
{
	size_t len;

	while (l->i < l->n && jspace(utf8_get(l->s + l->i, &len)))
		skip(l, len);
}

static struct jtoken *add(struct lex *l, enum jtoken_type type)
{
	struct jx *x = l->x;
	struct jtoken *t;

	if (jx_grow(x, &x->tokens, x->ntokens, &x->captokens, sizeof(*x->tokens)))
		return NULL;
	t = &x->tokens[x->ntokens++];
	t->type = type;
	t->line = x->line = l->line;
	return t;
}

/* Text in front of a tag: what the tag's sign and lstrip_blocks leave of it. */
static struct jstr before_tag(const struct lex *l, struct jstr text, char sign, bool block)
{
	size_t start = text.n, len;

	if (sign == '-')
		return jstr_strip(text, NULL, STRIP_RIGHT);
	if (sign == '+' || !block)
		return text;
	while (start && text.p[start - 1] != '\n')
		start--;
	if (!start && !l->line_start)
		return text;
	for (size_t i = start; i < text.n; i += len)
		if (!jspace(utf8_get(text.p + i, &len)))
			return text;
	text.n = start;
	return text;
}

static int add_data(struct lex *l, size_t from, size_t to, char sign, bool block)
{
	struct jstr text = before_tag(l, (struct jstr){ l->s + from, to - from }, sign, block);
	struct jtoken *t;

	if (!text.n)
		return 0;
	t = add(l, T_DATA);
	if (!t)
		return l->x->err->code;
	t->val = jv_str(text.p, text.n);
	return 0;
}

/* Behind the closing of a block or comment, which l->i has just passed; sign is the one in front of it. */
static void after_block(struct lex *l, char sign)
{
	size_t from = l->i;

	if (sign == '-')
		skip_space(l);
	else if (sign != '+' && l->i < l->n && l->s[l->i] == '\n')
		skip(l, 1);
	l->line_start = l->i > from && l->s[l->i - 1] == '\n';
}

static int comment(struct lex *l)
{
	size_t end = l->i;
	char sign = 0;

	while (end + 1 < l->n && (l->s[end] != '#' || l->s[end + 1] != '}'))
		end++;
	if (end + 1 >= l->n)
		return jx_fail(l->x, "comment without '#}'");
	if (end > l->i && (l->s[end - 1] == '-' || l->s[end - 1] == '+'))
		sign = l->s[end - 1];
	skip(l, end + 2 - l->i);
	after_block(l, sign);
	return 0;
}

/* At "{%" for a tag that is only `word`: its length to behind "%}" (0: another tag); *sign: in front of "%}". */
static size_t lone_tag(const struct lex *l, size_t i, const char *word, char *open, char *close)
{
	size_t len = strlen(word);

	i += 2;
	*open = *close = 0;
	if (i < l->n && (l->s[i] == '-' || l->s[i] == '+'))
		*open = l->s[i++];
	while (i < l->n && jspace((unsigned char)l->s[i]))
		i++;
	if (l->n - i < len || memcmp(l->s + i, word, len))
		return 0;
	i += len;
	while (i < l->n && jspace((unsigned char)l->s[i]))
		i++;
	if (i < l->n && (l->s[i] == '-' || l->s[i] == '+'))
		*close = l->s[i++];
	return l->n - i >= 2 && !memcmp(l->s + i, "%}", 2) ? i + 2 : 0;
}

/* {% raw %} ... {% endraw %} */
static int raw(struct lex *l, size_t behind, char close)
{
	size_t from, end;
	char open = 0;

	skip(l, behind - l->i);
	if (close == '-')
		skip_space(l);
	l->line_start = l->s[l->i - 1] == '\n';
	from = l->i;
	for (end = from; end < l->n; end++)
		if (l->s[end] == '{' && end + 1 < l->n && l->s[end + 1] == '%' &&
			(behind = lone_tag(l, end, "endraw", &open, &close)))
			break;
	if (end >= l->n)
		return jx_fail(l->x, "'raw' without 'endraw'");
	if (add_data(l, from, end, open, true))
		return l->x->err->code;
	skip(l, behind - l->i);
	after_block(l, close);
	return 0;
}

/* ---- within a tag ---- */

static const struct { const char *text; enum jop op; } ops[] = {
	{ "//", OP_FLOORDIV }, { "**", OP_POW }, { "==", OP_EQ }, { "!=", OP_NE }, { ">=", OP_GE }, { "<=", OP_LE },
	{ "+", OP_ADD }, { "-", OP_SUB },
	{ "/", OP_DIV }, { "*", OP_MUL }, { "%", OP_MOD }, { "~", OP_TILDE }, { "[", OP_LBRACKET },
	{ "]", OP_RBRACKET }, { "(", OP_LPAREN },
	{ ")", OP_RPAREN }, { "{", OP_LBRACE }, { "}", OP_RBRACE }, { ">", OP_GT }, { "<", OP_LT }, { "=", OP_ASSIGN },
	{ ".", OP_DOT },
	{ ":", OP_COLON }, { "|", OP_PIPE }, { ",", OP_COMMA },
};

static bool digit(const struct lex *l, size_t i)
{
	return i < l->n && l->s[i] >= '0' && l->s[i] <= '9';
}

static int number(struct lex *l)
{
	char text[64];
	size_t i = l->i, n = 0;
	bool real = false;
	struct jtoken *t;

	for (; i < l->n && n < sizeof(text) - 1; i++) {
		char c = l->s[i];
		if (c == '_' && digit(l, i + 1))
			continue;
		if ((c == '.' && !real && digit(l, i + 1)) || ((c == 'e' || c == 'E') && (digit(l, i + 1) ||
			(i + 1 < l->n && (l->s[i + 1] == '-' || l->s[i + 1] == '+') && digit(l, i + 2)))))
			real = true;
		else if (!digit(l, i) && !((c == '-' || c == '+') && n && (text[n - 1] == 'e' || text[n - 1] == 'E')))
			break;
		text[n++] = c;
	}
	text[n] = 0;
	t = add(l, real ? T_FLOAT : T_INT);
	if (!t)
		return l->x->err->code;
	errno = 0;
	t->val = real ? jv_float(strtod(text, NULL)) : jv_int(strtoll(text, NULL, 10));
	if (errno && !real)
		return jx_fail(l->x, "number '%s' is too large", text);
	skip(l, i - l->i);
	return 0;
}

static bool name_char(unsigned char c, bool first)
{
	return c >= 0x80 || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
		(!first && c >= '0' && c <= '9');
}

static int name(struct lex *l)
{
	size_t from = l->i;
	struct jtoken *t;

	while (l->i < l->n && name_char((unsigned char)l->s[l->i], l->i == from))
		l->i++;
	t = add(l, T_NAME);
	if (!t)
		return l->x->err->code;
	t->val = jv_str(l->s + from, l->i - from);
	return 0;
}

/* \xHH, \uHHHH, \UHHHHHHHH, \ooo: digits that follow at s[i]; false if there are too few. */
static bool code_point(const char *s, size_t n, size_t want, uint32_t *c)
{
	*c = 0;
	if (n < want)
		return false;
	for (size_t i = 0; i < want; i++) {
		char h = s[i];
		if (h >= '0' && h <= '9')
			*c = *c << 4 | (uint32_t)(h - '0');
		else if ((h | 32) >= 'a' && (h | 32) <= 'f')
			*c = *c << 4 | (uint32_t)((h | 32) - 'a' + 10);
		else
			return false;
	}
	return *c <= 0x10ffff && (*c < 0xd800 || *c > 0xdfff);
}

/* The escape behind the backslash at s[0]; writes to dst, returns the bytes used of s (0: bad), *len those written. */
static size_t unescape(const char *s, size_t n, char dst[4], size_t *len)
{
	static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
	const char *simple = s[0] ? strchr(from, s[0]) : NULL;
	size_t hex = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0, used = 0;
	uint32_t c = 0;

	*len = 1;
	if (simple) {
		dst[0] = to[simple - from];
		return 1;
	}
	if (s[0] == '\n') {
		*len = 0;
		return 1;
	}
	if (s[0] >= '0' && s[0] <= '7') {
		while (used < 3 && used < n && s[used] >= '0' && s[used] <= '7')
			c = c << 3 | (uint32_t)(s[used++] - '0');
	} else if (hex) {
		if (!code_point(s + 1, n - 1, hex, &c))
			return 0;
		used = hex + 1;
	} else {
		dst[0] = '\\'; /* not an escape: both stay; the second comes by itself */
		return *len = 1, SIZE_MAX;
	}
	*len = utf8_put(c, dst);
	return used;
}

static int string(struct lex *l)
{
	char quote = l->s[l->i], c[4];
	size_t end = l->i + 1, n = 0, len;
	struct jtoken *t;
	char *dst;

	while (end < l->n && l->s[end] != quote)
		end += l->s[end] == '\\' ? 2 : 1;
	if (end >= l->n)
		return jx_fail(l->x, "string without end");
	t = add(l, T_STR);
	dst = t ? jx_alloc(l->x, end - l->i) : NULL;
	if (!dst)
		return l->x->err->code;
	for (size_t i = l->i + 1; i < end; ) {
		size_t used = 1;
		len = 1;
		c[0] = l->s[i];
		if (c[0] == '\\') {
			used = unescape(l->s + i + 1, end - i - 1, c, &len);
			if (!used)
				return jx_fail(l->x, "bad escape in a string");
			used = used == SIZE_MAX ? 1 : used + 1;
		}
		memcpy(dst + n, c, len);
		n += len;
		i += used;
	}
	t->val = jv_str(dst, n);
	skip(l, end + 1 - l->i);
	return 0;
}

static int operator(struct lex *l, int *brackets)
{
	struct jtoken *t;

	for (size_t k = 0; k < ARRAY_LEN(ops); k++) {
		if (!at(l, ops[k].text))
			continue;
		t = add(l, T_OP);
		if (!t)
			return l->x->err->code;
		t->op = ops[k].op;
		t->val = jv_str(ops[k].text, strlen(ops[k].text));
		*brackets += strchr("([{", ops[k].text[0]) ? 1 : strchr(")]}", ops[k].text[0]) ? -1 : 0;
		skip(l, strlen(ops[k].text));
		return *brackets < 0 ? jx_fail(l->x, "unexpected '%s'", ops[k].text) : 0;
	}
	l->x->line = l->line;
	return jx_fail(l->x, "unexpected character 0x%02x", (unsigned)(unsigned char)l->s[l->i]);
}

/* From behind the opening of a tag to behind its end. */
static int tag(struct lex *l, bool block)
{
	const char *close = block ? "%}" : "}}";
	int brackets = 0, rc = 0;
	char sign;

	while (!rc) {
		skip_space(l);
		if (l->i >= l->n)
			return jx_fail(l->x, "tag without '%s'", close);
		sign = l->s[l->i];
		if (!brackets && (at(l, close) || ((sign == '-' || (sign == '+' && block)) && l->n - l->i > 2 &&
			!memcmp(l->s + l->i + 1, close, 2)))) {
			if (!add(l, block ? T_BLOCK_END : T_VAR_END))
				return l->x->err->code;
			skip(l, sign == close[0] ? 2 : 3);
			after_block(l, sign == '-' ? '-' : block && sign != '+' ? 0 : '+');
			return 0;
		}
		if (digit(l, l->i))
			rc = number(l);
		else if (name_char((unsigned char)sign, true))
			rc = name(l);
		else if (sign == '\'' || sign == '"')
			rc = string(l);
		else
			rc = operator(l, &brackets);
	}
	return rc;
}

/* Text up to the next tag, and the tag. */
static int root(struct lex *l)
{
	size_t from = l->i, next = from, behind;
	char sign, kind, close;

	while (next + 1 < l->n && !(l->s[next] == '{' && strchr("{%#", l->s[next + 1]) && l->s[next + 1]))
		next++;
	if (next + 1 >= l->n) {
		next = l->n;
		if (next > from && add_data(l, from, next, '+', false))
			return l->x->err->code;
		l->i = next;
		return 0;
	}
	kind = l->s[next + 1];
	sign = next + 2 < l->n ? l->s[next + 2] : 0;
	if (sign != '-' && sign != '+')
		sign = 0;
	if (add_data(l, from, next, sign, kind != '{'))
		return l->x->err->code;
	skip(l, next - from);
	l->x->line = l->line;
	if (kind == '%' && (behind = lone_tag(l, l->i, "raw", &sign, &close)))
		return raw(l, behind, close);
	skip(l, sign ? 3 : 2);
	if (kind == '#')
		return comment(l);
	if (!add(l, kind == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN))
		return l->x->err->code;
	return tag(l, kind == '%');
}

/* "\r\n" and "\r" are newlines; one at the very end goes. */
static int plain_newlines(struct jx *x, const char *src, size_t n, struct lex *l)
{
	char *s = jx_alloc(x, n + 1);
	size_t k = 0;

	if (!s)
		return x->err->code;
	for (size_t i = 0; i < n; i++) {
		bool cr = src[i] == '\r';
		if (cr && i + 1 < n && src[i + 1] == '\n')
			i++;
		s[k++] = cr ? '\n' : src[i];
	}
	if (k && s[k - 1] == '\n')
		k--;
	l->s = s;
	l->n = k;
	return 0;
}

int jinja_lex(struct jx *x, const char *src, size_t n)
{
	struct lex l = { .x = x, .line = 1, .line_start = true };

	x->line = 1;
	if (plain_newlines(x, src, n, &l))
		return x->err->code;
	while (l.i < l.n)
		if (root(&l))
			return x->err->code;
	return add(&l, T_EOF) ? 0 : x->err->code;
}
