/* Commands to the Redis front: reading them, in either form, and having them done. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/time.h"
#include "store/resp_impl.h"

enum { TEXT_KEEP = 64 << 10, COMMAND_NAME_MAX = 64, SLOWEST = 1 << 20 /* bytes a second of a peer that is served */ };

#define MEMORY_NS ((int64_t)5000000000) /* of waiting for memory that others have */

/* ---- arguments ---- */

struct resp_text resp_arg(const struct resp_conn *c, size_t i)
{
	const struct resp_arg *a = &c->argv[i];

	return (struct resp_text){ a->value ? c->value.p : (const uint8_t *)c->text.p + a->at, a->n };
}

bool resp_is(const struct resp_conn *c, size_t i, const char *word)
{
	struct resp_text a = resp_arg(c, i);

	return a.n == strlen(word) && strncasecmp((const char *)a.p, word, a.n) == 0;
}

void resp_allow(struct resp_conn *c, uint64_t n)
{
	c->r.deadline = time_mono_ns() + c->front->o.stall_ns + (int64_t)(n / SLOWEST) * 1000000000;
}

static int protocol(struct ds_err *err, const char *peer, const char *what)
{
	return err_set(err, DS_PROTO, "'%s' does not speak RESP: %s", peer, what);
}

void resp_stall(const struct resp_conn *c, bool begin)
{
	if (c->r.stall)
		c->r.stall(c->r.stall_ctx, begin);
}

void resp_turn(const struct resp_conn *c, size_t i)
{
	enum { TURN = 128 };

	if (i % TURN)
		return;
	resp_stall(c, true);
	resp_stall(c, false);
}

bool resp_take(struct resp_conn *c, size_t n, struct store_buffer *b)
{
	struct ds_err err;
	int64_t now = time_mono_ns();

	if (store_pool_take(c->front->pool, n, now, b, &err) == 0)
		return true;
	resp_stall(c, true);
	store_pool_take(c->front->pool, n, now + MEMORY_NS, b, &err);
	resp_stall(c, false);
	return b->p != NULL;
}

/* Or the rest is dropped, where it comes too slowly and others wait for its memory. */
static int read_into_value(struct resp_conn *c, size_t n, struct ds_err *err)
{
	int64_t until = c->r.deadline, since = time_mono_ns(), look;
	size_t done = 0, got;
	int rc = 0;

	while (!rc && done < n && !store_pool_too_slow(c->front->pool, &c->value, since, done)) {
		look = time_mono_ns() + STORE_POOL_LOOK_NS;
		c->r.deadline = look < until ? look : until;
		rc = resp_some(&c->r, c->value.p + done, n - done, &got, err);
		done += rc ? 0 : got;
		if (rc == DS_TEMP && time_mono_ns() < until)
			rc = 0;
	}
	c->r.deadline = until;
	if (rc || done == n)
		return rc;
	store_pool_give(c->front->pool, &c->value);
	c->refused = "TRYAGAIN the value came too slowly, and others waited for its memory";
	return resp_skip(&c->r, n - done, err);
}

static int read_value(struct resp_conn *c, size_t n, struct ds_err *err)
{
	resp_allow(c, n);
	if (!resp_take(c, n, &c->value)) {
		c->refused = "TRYAGAIN too many values are on their way";
		return resp_skip(&c->r, n, err);
	}
	resp_allow(c, n); /* having waited for the memory */
	return read_into_value(c, n, err);
}

static int read_text(struct resp_conn *c, size_t n, struct ds_err *err)
{
	struct buf *b = &c->text;

	for (size_t done = 0, got; done < n; done += got) {
		size_t want = n - done < RESP_SMALL ? n - done
			: RESP_SMALL; /* memory is taken as bytes prove the length */
		int rc;

		if (b->cap - b->len < want) {
			size_t cap = 2 * b->cap > b->len + want ? 2 * b->cap : b->len + want;
			char *p = mem_realloc(b->p, cap, 1);

			if (!p)
				return err_nomem(err, cap, "arguments of a command");
			b->p = p;
			b->cap = cap;
		}
		rc = resp_some(&c->r, b->p + b->len, want, &got, err);
		if (rc)
			return rc;
		b->len += got;
	}
	return 0;
}

static int keep_arg(struct resp_conn *c, struct resp_arg a, struct ds_err *err)
{
	struct resp_arg *argv = mem_more(c->argv, &c->argv_cap, c->args, sizeof a);

	if (!argv)
		return err_nomem(err, c->args * sizeof a, "arguments of a command");
	c->argv = argv;
	argv[c->args++] = a;
	return 0;
}

/* The bytes of an argument of length n. */
static int read_arg(struct resp_conn *c, bool value, size_t n, struct ds_err *err)
{
	struct resp_arg a = { c->text.len, n, value && n > RESP_SMALL };
	int rc = 0;

	if (!c->refused && value && n > c->front->o.max_value)
		c->refused = "ERR the value is too large for this store";
	if (!c->refused && !a.value && c->text.len + n > RESP_ARG_BYTES_MAX)
		c->refused = "ERR the arguments are too large";
	if (c->refused) {
		c->args++;
		resp_allow(c, n);
		return resp_skip(&c->r, n, err);
	}
	rc = keep_arg(c, a, err);
	if (!rc)
		rc = a.value ? read_value(c, n, err) : read_text(c, n, err);
	return rc;
}

int resp_next(struct resp_conn *c, bool value, struct ds_err *err)
{
	int64_t n;
	char *line;
	size_t len;
	int rc;

	if (c->in_line) {
		c->args++;
		return 0;
	}
	rc = resp_line(&c->r, &line, &len, err);
	if (rc)
		return rc;
	if (!len || *line != '$' || !resp_number(line + 1, len - 1, 0, RESP_BULK_MAX, &n))
		return protocol(err, c->peer, "an argument's length is due");
	rc = read_arg(c, value, (size_t)n, err);
	return rc ? rc : resp_crlf(&c->r, err);
}

void resp_forget(struct resp_conn *c)
{
	store_pool_give(c->front->pool, &c->value);
	if (!c->in_line)
		c->text.len = 0;
}

static int read_rest(struct resp_conn *c, struct ds_err *err)
{
	int rc = 0;

	while (!rc && c->args < c->argc)
		rc = resp_next(c, c->command && c->args == c->command->value, err);
	return rc;
}

/* ---- inline commands, as a person types them ---- */

static int hex(int ch)
{
	return isdigit(ch) ? ch - '0' : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
		: -1;
}

/* What \ and the characters behind it mean within "..."; *s: at the character after \. */
static char escaped(const char **s)
{
	static const char names[] = "n\nr\rt\tb\ba\a";
	const char *p = *s;

	++*s;
	if (*p == 'x' && hex(p[1]) >= 0 && hex(p[2]) >= 0) {
		*s += 2;
		return (char)(hex(p[1]) * 16 + hex(p[2]));
	}
	for (const char *m = names; *m; m += 2)
		if (*m == *p)
			return m[1];
	return *p;
}

/* One word from *s on to the text; false: quotes do not match. */
static bool word(struct resp_conn *c, const char **s, const char *end)
{
	char quote = 0, ch;

	while (*s < end && (quote || !isspace((unsigned char)**s))) {
		ch = *(*s)++;
		if (quote && ch == quote) {
			quote = 0;
			if (*s < end && !isspace((unsigned char)**s))
				return false;
			continue;
		}
		if (!quote && (ch == '"' || ch == '\'')) {
			quote = ch;
			continue;
		}
		if (quote == '"' && ch == '\\' && *s < end)
			ch = escaped(s);
		else if (quote == '\'' && ch == '\\' && *s < end && **s == '\'')
			ch = *(*s)++;
		buf_add(&c->text, &ch, 1);
	}
	return !quote;
}

/* The line ends with a NUL, so that looking ahead within it is safe. */
static int read_inline(struct resp_conn *c, const char *line, size_t n, struct ds_err *err)
{
	const char *s = line, *end = line + n;
	int rc;

	c->in_line = true;
	for (;;) {
		size_t at = c->text.len;

		while (s < end && isspace((unsigned char)*s))
			s++;
		if (s >= end)
			break;
		if (!word(c, &s, end))
			return protocol(err, c->peer, "quotes do not match in a line");
		if (c->text.nomem)
			return err_nomem(err, n, "arguments of a command");
		rc = keep_arg(c, (struct resp_arg){ at, c->text.len - at, false }, err);
		if (rc)
			return rc;
	}
	c->argc = c->args;
	if (!c->text.p)
		buf_add(&c->text, "", 0);
	c->args = c->argc ? 1 : 0;
	return 0;
}

/* ---- commands ---- */

static const struct resp_command *find(const struct resp_conn *c)
{
	for (const struct resp_command *k = resp_commands; k->name; k++)
		if (resp_is(c, 0, k->name))
			return k;
	return NULL;
}

static int read_head(struct resp_conn *c, struct ds_err *err)
{
	int64_t n;
	char *line;
	size_t len;
	int rc;

	c->argc = c->args = c->text.len = 0;
	c->in_line = false;
	c->command = NULL;
	c->refused = NULL;
	resp_allow(c, 0);
	rc = resp_line(&c->r, &line, &len, err);
	if (rc || !len)
		return rc;
	if (*line != '*')
		return read_inline(c, line, len, err);
	if (!resp_number(line + 1, len - 1, INT32_MIN, RESP_ELEMENTS_MAX, &n))
		return protocol(err, c->peer, "a number of arguments that cannot be");
	if (n <= 0)
		return 0;
	c->argc = (size_t)n;
	return resp_next(c, false, err);
}

/* A web page that was told to post here: its lines are no commands. */
static bool from_a_browser(const struct resp_conn *c)
{
	return c->in_line && (resp_is(c, 0, "post") || resp_is(c, 0, "host:"));
}

/* The rest is read, so that the next command is found. */
static int refuse(struct resp_conn *c, struct ds_err *err)
{
	const char *why = c->refused;
	int rc;

	c->refused = why ? why : "";
	rc = read_rest(c, err);
	if (rc)
		return rc;
	if (why)
		resp_error(c, "%s", why);
	else if (c->argc > RESP_ARGS_MAX)
		resp_error(c, "ERR a command has at most %d arguments", RESP_ARGS_MAX - 1);
	else if (c->command)
		resp_error(c, "ERR wrong number of arguments for '%s'", c->command->name);
	else
		resp_error(c, "ERR unknown command '%.*s'",
			(int)(c->argv->n < COMMAND_NAME_MAX ? c->argv->n : COMMAND_NAME_MAX),
			(const char *)resp_arg(c, 0).p);
	return 0;
}

int resp_command(struct resp_conn *c, struct ds_err *err)
{
	const struct resp_command *k;
	int rc = read_head(c, err);

	if (rc || !c->argc)
		return rc;
	c->front->commands++;
	if (from_a_browser(c))
		return protocol(err, c->peer, "HTTP");
	if (c->front->draining && !c->refused)
		c->refused = "TRYAGAIN the service is draining";
	c->command = k = c->refused ? NULL : find(c);
	if (!k || c->argc < k->min || (k->max && c->argc > k->max) || c->argc > RESP_ARGS_MAX)
		return refuse(c, err);
	if (!k->stream)
		rc = read_rest(c, err);
	else
		c->args = 1;
	if (!rc && c->refused)
		resp_error(c, "%s", c->refused);
	if (!rc && !c->refused) {
		resp_session_deadline(c);
		rc = k->run(c, err);
	}
	resp_forget(c);
	if (c->text.cap > TEXT_KEEP)
		buf_free(&c->text);
	return rc;
}
