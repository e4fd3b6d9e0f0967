#include "model/stop.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct stop_one {
	size_t n, at;                          /* at: so many of its bytes are at the text's end */
	unsigned char p[REQUEST_STOP_BYTES];   /* [n] */
	/* fall[k]: the longest proper prefix that is also a suffix of the first k bytes */
	unsigned short fall[REQUEST_STOP_BYTES + 1]; /* [n + 1] */
};

struct stop_matcher {
	size_t count;
	struct stop_one one[]; /* [count] */
};

/* The state behind one more byte; s->n where it is complete. */
static size_t step(const struct stop_one *s, size_t at, unsigned char c)
{
	while (at && (at == s->n || s->p[at] != c))
		at = s->fall[at];
	return at + (s->p[at] == c);
}

static void prepare(struct stop_one *s, const struct stop_string *string)
{
	memset(s, 0, sizeof(*s));
	s->n = string->n;
	memcpy(s->p, string->p, string->n);
	for (size_t k = 1; k < s->n; k++)
		s->fall[k + 1] = (unsigned short)step(s, s->fall[k], s->p[k]);
}

static struct stop_matcher *allocate(size_t count, struct ds_err *err)
{
	size_t bytes = sizeof(struct stop_matcher) + count * sizeof(struct stop_one);
	struct stop_matcher *m = mem_calloc(1, bytes);

	if (m)
		m->count = count;
	else
		err_nomem(err, bytes, "stop strings");
	return m;
}

int stop_new(struct stop_matcher **m, const struct stop_string *strings, size_t count, struct ds_err *err)
{
	*m = allocate(count, err);
	if (!*m)
		return err->code;
	for (size_t i = 0; i < count; i++)
		prepare(&(*m)->one[i], &strings[i]);
	return 0;
}

int stop_copy(struct stop_matcher **m, const struct stop_matcher *from, struct ds_err *err)
{
	*m = allocate(from->count, err);
	if (!*m)
		return err->code;
	memcpy((*m)->one, from->one, from->count * sizeof(*from->one));
	return 0;
}

void stop_free(struct stop_matcher *m)
{
	free(m);
}

bool stop_feed(struct stop_matcher *m, const char *p, size_t n, struct stop_found *found)
{
	for (size_t i = 0; i < n; i++) {
		size_t longest = 0;

		for (size_t k = 0; k < m->count; k++) {
			struct stop_one *s = &m->one[k];

			s->at = step(s, s->at, (unsigned char)p[i]);
			if (s->at == s->n && s->n > longest) {
				longest = s->n;
				found->which = k;
			}
		}
		if (longest) {
			found->cut = longest + n - i - 1;
			return true;
		}
	}
	return false;
}

size_t stop_hold(const struct stop_matcher *m)
{
	size_t hold = 0;

	for (size_t k = 0; k < m->count; k++)
		if (m->one[k].at > hold)
			hold = m->one[k].at;
	return hold;
}
