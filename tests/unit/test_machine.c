/* Probes of the machine: every kernel set, memory of the size that was asked for, reports. */
#include "engine/machine.h"
#include "kernels/probe.h"
#include "tests/unit/tap.h"

static void test_peaks(void)
{
	static const char *const names[] = { "scalar", "avx2", "avx512f", "avx512bf16" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct kern_stream *s;
		struct ds_err err;
		double f32, bf16;

		if (kern_stream_new(&s, 2, names[i], &err)) {
			tap_skip("this CPU has no %s", names[i]);
			continue;
		}
		f32 = kern_probe_peak(s, PROBE_F32);
		bf16 = kern_probe_peak(s, PROBE_BF16);
		tap_ok(f32 > 1e7 && f32 < 1e14, "%s: %.1f GFLOP/s", names[i], f32 * 1e-9);
		tap_ok(strcmp(names[i], "avx512bf16") ? bf16 == 0 : bf16 > 1e7, "%s: BF16 %.1f GFLOP/s", names[i],
			bf16 * 1e-9);
		tap_ok(kern_probe_best(s) > 1e7, "%s: the faster of them", names[i]);
		kern_stream_free(s);
	}
}

static void test_memory(void)
{
	size_t cache = kern_probe_cache(), bytes = 100 << 20;
	unsigned char *p;
	struct kern_stream *s;
	struct ds_err err;
	bool zero = false;
	double rate;

	if (kern_stream_new(&s, 2, NULL, &err))
		tap_bail("%s", err.text);
	p = kern_probe_memory(s, true, &bytes);
	if (!p)
		tap_bail("no memory");
	tap_ok(bytes % (2 << 20) == 0 && bytes <= 1 << 30 && bytes >= 100 << 20 &&
		(bytes >= 4 * cache || bytes == 1 << 30), "%zu bytes for caches of %zu", bytes, cache);
	for (size_t i = 0; i < bytes; i += 4096) /* untouched pages would all be one */
		zero |= p[i] == 0;
	tap_ok(!zero, "every page is written");
	rate = kern_probe_read(s, p, bytes);
	tap_ok(rate > 1e7 && rate < 1e13, "read with %.1f GB/s", rate * 1e-9);
	kern_stream_free(s);
	if (kern_stream_new(&s, 80, NULL, &err)) /* a sum of its own for each, also above 64: make SANITIZE=thread */
		tap_bail("%s", err.text);
	rate = kern_probe_read(s, p, bytes);
	tap_ok(rate > 1e7 && rate < 1e13, "80 threads read with %.1f GB/s", rate * 1e-9);
	kern_probe_free(p, bytes);
	kern_probe_free(NULL, 0);
	kern_stream_free(s);
}

static void test_limits(void)
{
	struct machine_limits l;
	struct kern_stream *s;
	struct ds_err err;

	if (kern_stream_new(&s, 1, "scalar", &err))
		tap_bail("%s", err.text);
	l = machine_limits(s, 2);
	tap_ok(l.read.best >= l.read.median && l.read.median > 0 && l.f32.best >= l.f32.median && l.f32.median > 0 &&
		l.bf16.best == 0, "limits of a stream");
	l = machine_limits(s, 0);
	tap_ok(l.read.best == 0 && l.f32.best == 0, "no runs, no limits");
	kern_stream_free(s);
}

int main(void)
{
	test_peaks();
	test_memory();
	test_limits();
	return tap_done();
}
