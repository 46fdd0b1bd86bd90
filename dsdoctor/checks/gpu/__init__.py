"""GPUs: are they all there, are they sound, and can they do what the stack asks of them?"""
