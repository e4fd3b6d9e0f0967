/* From ids to text. */
#include <string.h>

#include "base/utf8.h"
#include "model/tokenizer_impl.h"

bool tokenizer_bytes(const struct tokenizer *t, uint32_t id, bool special, const char **p, size_t *n)
{
	const struct token_text *k;

	if (id >= t->n || !t->tokens[id].known)
		return false;
	k = &t->tokens[id];
	*p = t->arena.p + k->off;
	*n = k->special && !special ? 0 : k->len;
	return true;
}

void tokenizer_text(const struct tokenizer *t, uint32_t id, bool special, const char **p, size_t *n)
{
	if (tokenizer_bytes(t, id, special, p, n))
		return;
	*p = "\xef\xbf\xbd";
	*n = 3;
}

static void add_bad(struct buf *out)
{
	buf_add(out, "\xef\xbf\xbd", 3);
}

/* Could d->pending, which is not a whole character, become one?  Tried by completing it with the tails that may follow.
 */
static bool may_become_char(const struct detok *d)
{
	char s[4];

	for (unsigned tail = 0x80; tail < 0xc0; tail += 0x10) {
		memset(s, (int)tail, sizeof(s));
		memcpy(s, d->pending, d->n);
		if (utf8_char(s, sizeof(s)) > d->n)
			return true;
	}
	return false;
}

static void add_byte(struct detok *d, char c, struct buf *out)
{
	d->pending[d->n++] = c;
	if (utf8_char(d->pending, d->n)) {
		buf_add(out, d->pending, d->n);
		d->n = 0;
	} else if (d->n == 4 || !may_become_char(d)) {
		/* One sign for the part that could have become a character; the byte that broke it begins anew. */
		bool again = d->n > 1;
		d->n = 0;
		add_bad(out);
		if (again)
			add_byte(d, c, out);
	}
}

void detok_end(struct detok *d, struct buf *out)
{
	if (d->n)
		add_bad(out);
	d->n = 0;
}

void detok_bytes(struct detok *d, const char *p, size_t n, struct buf *out)
{
	for (size_t i = 0; i < n; i++)
		add_byte(d, p[i], out);
}

int detok_add(struct detok *d, const struct tokenizer *t, uint32_t id, struct buf *out, struct ds_err *err)
{
	const char *p;
	size_t n;

	tokenizer_text(t, id, d->special, &p, &n);
	detok_bytes(d, p, n, out);
	return out->nomem ? err_nomem(err, n, "text") : 0;
}
