/* Errors that many requests share: a line with their number, not a line for each. */
#include <string.h>

#include "serve/internal.h"

#define GATHER_NS ((int64_t)500000000)

void tell_flush(struct stage *st)
{
	struct told *t = &st->told;

	if (t->n > 1)
		log_msg(LOG_ERROR, "%s (%zu requests)", t->why.text, t->n);
	else if (t->n)
		log_err(&t->why);
	t->n = 0;
}

/* How many requests it is about: 0 is 1, since the line is due in any case. */
void tell(struct stage *st, const struct ds_err *why, size_t requests)
{
	struct told *t = &st->told;

	if (t->n && strcmp(t->why.text, why->text) != 0)
		tell_flush(st);
	if (!t->n) {
		t->why = *why;
		t->due = st->now + GATHER_NS;
	}
	t->n += requests ? requests : 1;
}

int64_t tell_due(const struct stage *st)
{
	return st->told.n ? st->told.due : -1;
}
