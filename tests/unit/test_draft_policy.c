/* Whether speculation pays, by times made up: the policy finds out, changes its mind, and says by how much. */
#include "serve/draft_policy.h"

#include <math.h>

#include "tap.h"

struct world { size_t n; double plain, drafted, gain; }; /* ns of a step, tokens a request and step with drafts */

struct outcome { size_t drafted, plain, verdicts, news; double ratio; };

static struct outcome live(struct draft_policy *p, const struct world *w, size_t steps)
{
	struct outcome o = { 0 };
	double owed = 0.0;

	for (size_t i = 0; i < steps; i++) {
		bool drafted = draft_wanted(p, w->n);
		double noise = 1.0 + 0.1 * ((double)(i * 7 % 11) / 10.0 - 0.5), ratio = 0.0;
		size_t tokens = w->n;
		bool again = false;

		if (drafted) {
			owed += w->gain * (double)w->n;
			tokens = (size_t)owed;
			owed -= (double)tokens;
		}
		o.drafted += drafted;
		o.plain += !drafted;
		if (draft_timed(p, w->n, drafted, tokens, (int64_t)((drafted ? w->drafted : w->plain) * noise),
			    &ratio, &again)) {
			o.news += !again;
			o.verdicts++;
			o.ratio = ratio;
		}
	}
	return o;
}

static double speedup(const struct draft_policy *p)
{
	double tokens, cost;

	return draft_summary(p, &tokens, &cost) ? tokens / cost : -1.0;
}

static void test_pays(void)
{
	static const struct world good = { 1, 1e6, 1.2e6, 1.9 };
	struct draft_policy p = { 0 };
	struct outcome o = live(&p, &good, 2000);
	double tokens = 0.0, cost = 0.0;
	bool known;

	tap_ok(o.verdicts == 0 && o.drafted > 1900 && o.plain >= 2000 / 64,
		"where it pays nearly every step has drafts (%zu of 2000), a few are measured without", o.drafted);
	known = draft_summary(&p, &tokens, &cost);
	tap_ok(known && fabs(tokens - 1.9) < 0.02 && fabs(cost - 1.2) < 0.03,
		"and it is told what a step gave and cost: %.3f tokens, %.3f times", tokens, cost);
}

static void test_does_not_pay(void)
{
	static const struct world bad = { 1, 1e6, 1.5e6, 1.2 };
	struct draft_policy p = { 0 };
	struct outcome o = live(&p, &bad, 60);

	tap_ok(o.verdicts == 1 && o.news == 1 && fabs(o.ratio - 1.2 / 1.5) < 0.08,
		"where it does not pay it ends soon, and says why: %.2f",
		o.ratio);
	o = live(&p, &bad, 900);
	tap_ok(o.drafted == 0, "for a good while no step has drafts");
	o = live(&p, &bad, 2000);
	tap_ok(o.drafted > 0 && o.drafted < 150 && o.verdicts >= 1 && !o.news, "then it is tried again (%zu of 2000)",
		o.drafted);
	p = (struct draft_policy){ .always = true };
	o = live(&p, &bad, 2000);
	tap_ok(o.verdicts == 0 && o.drafted > 1900, "unless it is to speculate always");
	tap_ok(fabs(speedup(&p) - 0.8) < 0.05, "what that costs is told all the same: %.3f", speedup(&p));
}

static void test_changes_its_mind(void)
{
	static const struct world good = { 1, 1e6, 1.2e6, 1.9 }, bad = { 1, 1e6, 1.2e6, 1.05 };
	struct draft_policy p = { 0 };
	struct outcome o;

	live(&p, &good, 1000);
	o = live(&p, &bad, 200);
	tap_is_int((long long)o.verdicts, 1, "drafts that become wrong end it");
	live(&p, &bad, 300);
	o = live(&p, &good, 2000);
	tap_ok(o.drafted > 1000 && o.verdicts == 0, "drafts that become right bring it back (%zu of 2000)", o.drafted);
}

static void test_classes(void)
{
	static const struct world one = { 1, 1e6, 1.1e6, 1.8 }, many = { 40, 4e6, 9e6, 1.8 };
	struct draft_policy p = { 0 };
	struct outcome a, b = { 0 };

	for (size_t i = 0; i < 10; i++) {
		struct outcome c;

		a = live(&p, &one, 50);
		c = live(&p, &many, 50);
		b.verdicts += c.verdicts;
		b.drafted += c.drafted;
	}
	tap_ok(a.drafted > 40, "what does not pay for many does not keep one from it");
	tap_ok(b.verdicts == 1 && b.drafted < 60, "nor the other way round");
	a = live(&p, &(struct world){ 4096, 1e6, 1.1e6, 1.8 }, 50);
	b = live(&p, &(struct world){ 1000000, 1e6, 1.1e6, 1.8 }, 50);
	tap_ok(a.drafted > 40 && b.drafted > 40, "any number of requests has its class");
}

static void test_nothing(void)
{
	struct draft_policy p = { 0 };
	double ratio, tokens, cost;
	bool again;

	tap_ok(speedup(&p) < 0.0, "nothing measured, nothing told");
	for (size_t i = 0; i < 100; i++)
		if (draft_timed(&p, 1, false, 1, 1000, &ratio, &again))
			tap_bail("a verdict without drafts");
	tap_ok(speedup(&p) < 0.0, "nor without a step that had drafts");
	for (size_t i = 0; i < 200; i++)
		draft_timed(&p, 1, true, 1, 0, &ratio, &again);
	tap_ok(draft_summary(&p, &tokens, &cost) && isfinite(tokens) && isfinite(cost),
		"a clock that stands still breaks nothing");
}

int main(void)
{
	test_pays();
	test_does_not_pay();
	test_changes_its_mind();
	test_classes();
	test_nothing();
	return tap_done();
}
