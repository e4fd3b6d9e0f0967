#include "serve/draft_policy.h"

#include <stdlib.h>
#include <string.h>

enum {
	FIRST_DRAFTED = 4, FIRST_PLAIN = 3, /* steps of either kind before anything is known, but for the first */
	PERIOD = 64,        /* steps from one pair of plain steps to the next */
	PLAIN = 2,
	JUDGED = 24,        /* steps with drafts before a verdict */
	OFF = 1000,         /* steps without after one */
};

static size_t class_of(size_t n)
{
	size_t c = 0;

	for (; n > 1 && c + 1 < DRAFT_CLASSES; n /= 2)
		c++;
	return c;
}

bool draft_wanted(const struct draft_policy *p, size_t n)
{
	const struct draft_class *c = &p->c[class_of(n)];

	if (c->off && !p->always)
		return false;
	if (c->steps < FIRST_DRAFTED)
		return true;
	return c->steps >= FIRST_DRAFTED + FIRST_PLAIN && c->steps % PERIOD >= PLAIN;
}

static void note(struct draft_times *t, int64_t ns)
{
	t->ns[t->steps++ % DRAFT_RECENT] = (double)ns;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(const struct draft_times *t)
{
	size_t n = t->steps < DRAFT_RECENT ? (size_t)t->steps : DRAFT_RECENT;
	double v[DRAFT_RECENT];

	if (!n)
		return 0.0;
	memcpy(v, t->ns, n * sizeof(*v));
	qsort(v, n, sizeof(*v), by_size);
	return (v[(n - 1) / 2] + v[n / 2]) / 2;
}

static void blend(double *mean, double v, uint64_t seen)
{
	*mean = seen ? *mean + (v - *mean) / (seen < 16 ? (double)seen + 1 : 16.0) : v;
}

bool draft_timed(struct draft_policy *p, size_t n, bool drafted, size_t tokens, int64_t ns, double *ratio, bool *again)
{
	struct draft_class *c = &p->c[class_of(n)];

	if (c->off && !drafted) {
		if (--c->off == 0)
			c->steps = c->drafted.steps = c->plain.steps = 0;
		return false;
	}
	if (c->steps++ == 0)
		return false; /* memory is touched for the first time */
	if (!drafted) {
		note(&c->plain, ns);
		return false;
	}
	blend(&c->gain, (double)tokens / (double)n, c->drafted.steps);
	note(&c->drafted, ns);
	c->total_steps++;
	c->total_tokens += tokens;
	c->total_requests += n;
	if (!c->plain.steps || c->drafted.steps < JUDGED)
		return false;
	*ratio = c->gain * median(&c->plain) / median(&c->drafted);
	if (*ratio >= 1.0 || p->always)
		return false;
	c->off = OFF;
	*again = c->verdicts++ > 0;
	return true;
}

bool draft_summary(const struct draft_policy *p, double *tokens, double *cost)
{
	double plain = 0.0, drafted = 0.0, gain = 0.0;

	for (size_t i = 0; i < DRAFT_CLASSES; i++) {
		const struct draft_class *c = &p->c[i];
		double steps = (double)c->total_steps, ns = median(&c->plain) * steps;

		if (ns <= 0.0)
			continue;
		plain += ns;
		drafted += median(&c->drafted) * steps;
		gain += ns * (double)c->total_tokens / (double)c->total_requests;
	}
	if (plain <= 0.0)
		return false;
	*tokens = gain / plain;
	*cost = drafted / plain;
	return true;
}
