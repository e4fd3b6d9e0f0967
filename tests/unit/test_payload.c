/* Payloads taken apart and put together again. */
#include <stdlib.h>

#include "base/mem.h"
#include "base/random.h"
#include "store/item.h"
#include "tap.h"

static uint8_t plain[5000], data[5056], back[5000];

/* Cut into three pieces. */
static bool travels(unsigned element, size_t size)
{
	struct iovec iov[3] = { { plain, size / 3 }, { plain + size / 3, size / 2 }, { NULL, 0 } };
	struct store_item item = { .size = size, .planes = element };
	size_t count = size / element;
	bool good = true;

	iov[2] = (struct iovec){ plain + size / 3 + size / 2, size - size / 3 - size / 2 };
	memset(data, 0x55, sizeof data);
	memset(back, 0xaa, sizeof back);
	store_payload_split(element, iov, 3, size, data);
	for (size_t i = 0; i < count; i++)
		for (unsigned k = 0; k < element; k++)
			good = good && data[k * count + i] == plain[i * element + k];
	for (size_t i = size; i < round_up(size, 64); i++)
		good = good && data[i] == 0;
	store_item_plain(&item, data, back);
	return good && memcmp(back, plain, size) == 0 && (size == sizeof back || back[size] == 0xaa);
}

int main(void)
{
	struct store_item item = { .size = 100 };
	bool good = true;

	for (size_t i = 0; i < sizeof plain; i++)
		plain[i] = (uint8_t)(i * 31 + i / 7);
	for (unsigned element = 2; element <= 16; element++)
		for (size_t size = 0; size <= 4999; size += size < 140 ? 1 : 613)
			good = good && travels(element, size);
	tap_ok(good, "bytes taken apart by their place in an element, and put together");
	store_item_plain(&item, plain, back);
	tap_ok(memcmp(plain, back, 100) == 0, "and such as lie as they were put");
	return tap_done();
}
