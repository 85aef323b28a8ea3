"""Prompts of different kinds; ``long`` is beyond the 512-token window of the default model's sliding layers."""

_PARAGRAPH = (
    "On day {day} the expedition climbed to camp {day}, where the wind had torn two of the tents. "
    "The doctor noted a pulse of {pulse} and the cook reported {stock} tins of beans. "
)

PROMPTS = {
    "story": "The old clock in the town square had stopped at ten past four, and nobody knew why. One morning",
    "code": 'def flatten(items):\n    """Flatten a nested list of integers into one list."""\n    result = []\n',
    "json": '{"users": [{"id": 1, "name": "Ana", "age": 31}, {"id": 2, "name": "Bo", "age": 27}, {"id": 3,',
    "list": "Ten countries and their capitals:\n1. France - Paris\n2. Japan - Tokyo\n3.",
    "dialogue": "Customer: My order has not arrived.\nAgent: I am sorry. What is the order number?\nCustomer:",
    "repeat": "Copy the line three times.\nThe cat sat on the mat.\nThe cat sat on the mat.\nThe cat",
    "french": "Traduction de l'anglais au français.\nEnglish: The weather is nice today.\nFrançais:",
    "noise": "zq 81 %% lorem kxw 0x7f ;; vblq 993 ~~ trrp",
    "long": "".join(
        _PARAGRAPH.format(day=day, pulse=60 + day * 3 % 40, stock=200 - day * 7) for day in range(1, 20)
    ),
}
